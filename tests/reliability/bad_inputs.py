"""The table of bad inputs: what is given, what is damaged before, and what must come.

Every row is a command line or a Python call that a person could send by mistake, run in a copy of the world of
`world.py`. A row of ours is answered by one line that names what is wrong; nothing that was there is changed.
"""

from __future__ import annotations

from tests.reliability.bad_asking import ASKING_ROWS
from tests.reliability.bad_benchmarks import BENCHMARK_ROWS
from tests.reliability.bad_files import FILE_ROWS
from tests.reliability.bad_going_on import GOING_ON_ROWS
from tests.reliability.bad_images import IMAGE_ROWS
from tests.reliability.bad_python import PYTHON_ROWS
from tests.reliability.bad_python_data import PYTHON_DATA_ROWS
from tests.reliability.bad_words import WORD_ROWS
from tests.reliability.rows import BadInput

TABLE: tuple[BadInput, ...] = (
    *WORD_ROWS,
    *IMAGE_ROWS,
    *FILE_ROWS,
    *BENCHMARK_ROWS,
    *PYTHON_ROWS,
    *PYTHON_DATA_ROWS,
    *ASKING_ROWS,
    *GOING_ON_ROWS,
)
