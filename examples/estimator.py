"""The scikit-learn estimator on arrays of features, here the pixels of digits. No download, about 15 seconds.

Unlabelled rows have the label -1; source rows have a positive domain and target rows a negative one. Run it with
`python examples/estimator.py`.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import qurate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="training steps before selection")
    options = parser.parse_args()

    typeset = qurate.digits_split(shots=1, seed=0, source_per_class=100).source
    handwritten, truth = load_digits(return_X_y=True)
    shots = np.concatenate([np.flatnonzero(truth == digit)[:3] for digit in range(10)])
    known = np.full(len(truth), -1)
    known[shots] = truth[shots]  # three labels per class

    features = np.concatenate([typeset.inputs.flatten(1).numpy(), handwritten / 16])
    labels = np.concatenate([typeset.labels.numpy(), known])
    domain = np.repeat([1, -1], [len(typeset), len(truth)])

    plain = LogisticRegression(max_iter=1000).fit(features[labels >= 0], labels[labels >= 0])
    adapted = qurate.SSDAClassifier(selector="balanced", steps=options.steps, rounds=4)
    adapted.fit(features, labels, sample_domain=domain)

    hidden = known < 0
    for name, model in (("logistic regression", plain), ("SSDAClassifier", adapted)):
        print(f"{name}: {model.score(handwritten[hidden] / 16, truth[hidden]):.1%} on the unlabelled digits")
    print(f"{(adapted.transduction_[domain < 0] >= 0).sum() - len(shots)} pseudo-labels were trusted")


if __name__ == "__main__":
    main()
