"""`python -m qurate`."""

from qurate.cli import main

if __name__ == "__main__":
    main()
