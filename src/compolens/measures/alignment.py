"""Whether a student's modules are the teacher's, up to a linear map of the code and the order of neurons.

A linear hypernetwork generates W(z) = sum_m z_m Theta_m. If z = F z_hat, the student's modules combined by the
pseudo-inverse of F are to be compared with the teacher's (2312.15001): every teacher neuron's incoming weights with
those of the student neuron that matches best. Matched module by module, neurons may be exchanged between modules;
matched once for all modules together, they may not, and that is what identification says.
"""

from __future__ import annotations

import numpy as np


def module_alignment(teacher: np.ndarray, student: np.ndarray, mixing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines between teacher neurons and the student neurons that match them best.

    Args:
        teacher: (M, d_x, neurons) the teacher's modules.
        student: (C, d_x, student neurons) the student's.
        mixing: (M, C), F of z = F z_hat.

    Returns:
        (per module (M, neurons), shared by all modules (neurons,)), each from -1 to 1; the sign counts, since relu has one.
    """
    combined = np.einsum("cm,cxh->mxh", np.linalg.pinv(mixing), student)
    apart = np.einsum("mxn,mxh->mnh", _unit(teacher, 1), _unit(combined, 1))
    whole = [part.reshape(-1, part.shape[-1]) for part in (teacher, combined)]
    shared = _unit(whole[0], 0).T @ _unit(whole[1], 0)
    return apart.max(2), shared.max(1)


def _unit(values: np.ndarray, axis: int) -> np.ndarray:
    """Vectors along an axis, at length 1; those of length 0 stay."""
    return values / np.maximum(np.linalg.norm(values, axis=axis, keepdims=True), 1e-12)
