"""Linear classifiers of categorical codes, and their scores, which do not reward guessing the majority."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler


@dataclass(frozen=True)
class LogisticReadout:
    """A frozen multinomial logistic readout: x (n, features) -> the class number (n,) of highest probability.

    Args:
        classes: (classes,) the class numbers it knows.
        weight: (classes, features), on raw features.
        bias: (classes,).
        converged: whether the fit did.
    """

    classes: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    converged: bool

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.classes[(np.asarray(x, dtype=np.float64) @ self.weight.T + self.bias).argmax(1)]

    @classmethod
    def fit(cls, x: np.ndarray, y: np.ndarray, c: float = 1.0, iterations: int = 300) -> LogisticReadout:
        """Fit on standardised features, classes weighted to count equally.

        One class alone gives a readout that always answers it. A fit that has not converged is used as it is, and `converged`
        says so.

        Args:
            x: (n, features).
            y: (n,) class numbers.
            c: inverse strength of the penalty, as in scikit-learn.
            iterations: most steps of L-BFGS.

        Returns:
            The readout, which applies to raw features.
        """
        classes = np.unique(y)
        if len(classes) == 1:
            return cls(classes, np.zeros((1, x.shape[1])), np.zeros(1), True)
        scaler = StandardScaler().fit(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=c, class_weight="balanced", max_iter=iterations).fit(scaler.transform(x), y)
        weight, bias = model.coef_, model.intercept_
        if len(classes) == 2:  # one row there: the log-odds of the second class
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        weight = weight / scaler.scale_
        return cls(classes, weight, bias - weight @ scaler.mean_, bool(np.all(model.n_iter_ < iterations)))


def confusion(truth: np.ndarray, answer: np.ndarray, n_classes: int) -> np.ndarray:
    """Counts of answers by the true class.

    Args:
        truth: (n,) class numbers.
        answer: (n,) class numbers.
        n_classes: classes there are.

    Returns:
        (n_classes, n_classes), [true class, answered class].
    """
    return np.bincount(truth.astype(np.int64) * n_classes + answer, minlength=n_classes**2).reshape(n_classes, n_classes)


def balanced_accuracy(counts: np.ndarray) -> np.ndarray:
    """Mean over the classes that occur of the share answered rightly.

    Args:
        counts: (..., true, answered).

    Returns:
        (...,): 1 is perfect, one over the number of classes is chance, whatever the classes' frequencies.
    """
    total, right = counts.sum(-1), np.diagonal(counts, axis1=-2, axis2=-1)
    recall = np.where(total > 0, right / np.maximum(total, 1), np.nan)
    return np.nanmean(recall, axis=-1)


def macro_f1(counts: np.ndarray) -> np.ndarray:
    """Mean of F1 over the classes that occur or are answered.

    Args:
        counts: (..., true, answered).

    Returns:
        (...,): 1 is perfect, 0 none right.
    """
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    either = counts.sum(-1) + counts.sum(-2)
    return np.nanmean(np.where(either > 0, 2 * right / np.maximum(either, 1), np.nan), axis=-1)
