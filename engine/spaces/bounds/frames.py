"""The weights of one attribute, seen through the functions of its cells that are looked at closely.

Notation
--------
mu, s        weights of the cells, sum 1, and their roots
K            D^(1/2) times functions of the cells, orthonormal columns, the first one s; shape (n, k)
Y            root of H = D^(1/2) W^T W D^(1/2): rows with the same Gram as those of a family
R = K^T Y K  what a family asks inside K, index 0 for the cells' sum; C = R^2
t            what it asks outside: the nuclear norm of Y on the complement of K

Y is symmetric, and in the bases (K, rest) of its rows and its columns its two blocks off the diagonal are left out: a
pinching, which no nuclear norm survives larger.  For one group alone nothing is lost, because a trace is its blocks'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from engine.arrays import Array
from engine.spaces.bounds.links import Key, Linked
from engine.spaces.bounds.norms import lowered
from engine.spaces.coordinates import contract, grouped
from engine.spaces.split import Role
from engine.threads import threads_for

RANK = 1e-6  # roots this small against the largest may be rounding alone, and give the derivative nothing


@dataclass(kw_only=True, eq=False)
class FamilyRoot:
    """One family on one frame, with derivatives by R and t as they come in; ``roots`` and U make Y."""

    gram: Array
    roots: Array
    U: Array
    R: Array
    C: Array
    t: float
    by_root: Array
    by_gram: Array
    by_t: float = 0.0


class Frame:
    """One attribute under weights, with k functions; collects derivatives and carries them back to s.

    Parameters
    ----------
    s : roots of the weights, shape (n,), length 1.
    functions : of the cells, shape (n, k), the first one constant.
    families : key -> rows, shape (m, n).
    """

    def __init__(self, s: Array, functions: Array, families: Mapping[Key, Array]) -> None:
        self.s = s
        K, _ = np.linalg.qr(functions * s[:, None])
        # QR leaves the sign of a column open; a sign that flips between two steps would look like a jump to the climb
        self.K = K * np.where(functions[0] * K[0] < 0.0, -1.0, 1.0)
        self.K[:, 0] = s
        self.F = self.K * s[:, None]  # a row W is W F on K
        self.by_F = np.zeros_like(self.F)
        self.families = {key: self._family(rows) for key, rows in families.items()}

    def _family(self, rows: Array) -> FamilyRoot:
        gram = rows.T @ rows
        with threads_for(len(gram)):
            eigenvalues, U = scipy.linalg.eigh(gram * self.s[:, None] * self.s, check_finite=False)
        roots = np.sqrt(lowered(eigenvalues))
        part = U.T @ self.K
        R = part.T @ (part * roots[:, None])
        # tr Y on the complement of K is what tr Y on K leaves; with all functions in K nothing is left but rounding
        t = max(float(roots.sum() - np.trace(R)), 0.0) if len(R) < len(gram) else 0.0
        return FamilyRoot(
            gram=gram, roots=roots, U=U, R=R, C=R @ R, t=t, by_root=np.zeros_like(R), by_gram=np.zeros_like(R)
        )

    def by_s(self) -> Array:
        """Return the derivative by s for what was collected, shape (n,), along the sphere."""
        by_K = self.s[:, None] * self.by_F
        out = np.einsum("nk,nk->n", self.by_F, self.K)
        for family in self.families.values():
            by_root = family.by_root + family.R @ family.by_gram + family.by_gram @ family.R
            by_root = 0.5 * (by_root + by_root.T)
            by_root[np.diag_indices(len(by_root))] -= family.by_t
            part = family.U.T @ self.K
            by_K += 2.0 * family.U @ (family.roots[:, None] * part) @ by_root
            by_Y = part @ by_root @ part.T
            by_Y[np.diag_indices(len(by_Y))] += family.by_t
            # Y^2 = H makes dY solve Y dY + dY Y = dH: in the eigenbasis of Y a division by sums of roots
            sums = family.roots[:, None] + family.roots
            by_H = np.divide(by_Y, sums, out=np.zeros_like(by_Y), where=sums > RANK * family.roots[-1])
            out += 2.0 * ((family.U @ by_H @ family.U.T) * family.gram) @ self.s
        Psi = self.K / self.s[:, None]
        out += np.einsum("nk,nk->n", by_K, Psi)
        # K is the Q of a QR decomposition: with E = Psi ds it moves by E less K times twice the upper triangle of the
        # symmetric K^T E, the diagonal once
        half = np.triu(self.K.T @ by_K)
        half[np.diag_indices(len(half))] *= 0.5
        out -= 2.0 * self.s * np.einsum("nk,nk->n", Psi @ half, Psi)
        # weights have sum 1, so that s stays on the sphere and what points outwards changes nothing
        return np.asarray(out - (out @ self.s) * self.s)


@dataclass(kw_only=True, eq=False)
class Joint:
    """A part on several attributes: its rows on their K, shape (m, k_1, ..., k_p), with the derivative by them."""

    rows: Array
    frames: tuple[Frame, ...]
    Z: Array
    by_rows: Array

    def back(self) -> None:
        """Carry the derivative on to the frames."""
        for axis, frame in enumerate(self.frames):
            out = contract(self.rows, [None if a == axis else f.F for a, f in enumerate(self.frames)], 1)
            rest = tuple(a for a in range(out.ndim) if a != axis + 1)
            # Z is linear in the F of every axis, even where two axes share one frame: each adds its own share
            frame.by_F += grouped(out, [rest, (axis + 1,)]).T @ grouped(self.by_rows, [rest, (axis + 1,)])


class State:
    """All attributes under weights; frames and joint parts are made when they are first asked for.

    Parameters
    ----------
    asked : the workload.
    s : roots of the weights by role.
    functions : by role, the most important first, shape (n, n).
    """

    def __init__(
        self, asked: Linked, s: Mapping[Role, Array], functions: Mapping[Role, Array], derivative: bool
    ) -> None:
        self.asked, self.s, self.functions, self.derivative = asked, s, functions, derivative
        self.frames: dict[tuple[Role, int], Frame] = {}
        self.joints: dict[Any, Joint] = {}

    def frame(self, role: Role, k: int) -> Frame:
        """Return one attribute with k functions."""
        if (role, k) not in self.frames:
            families = {key: self.asked.rows[key] for key in self.asked.singles.get(role, ())}
            self.frames[role, k] = Frame(self.s[role], self.functions[role][:, :k], families)
        return self.frames[role, k]

    def joint(self, key: Key, places: tuple[tuple[Role, int], ...]) -> Joint:
        """Return a part on several attributes, given by role and number of functions."""
        if (key, places) not in self.joints:
            frames = tuple(self.frame(*place) for place in places)
            rows = self.asked.rows[key].reshape(-1, *(len(f.s) for f in frames))
            Z = contract(rows, [frame.F for frame in frames], 1)
            self.joints[key, places] = Joint(rows=rows, frames=frames, Z=Z, by_rows=np.zeros(Z.shape))
        return self.joints[key, places]

    def by_s(self) -> dict[Role, Array]:
        """Return the derivative by s of every role, shape (n,)."""
        for joint in self.joints.values():
            joint.back()
        out = {role: np.zeros(len(s)) for role, s in self.s.items()}
        for (role, _), frame in self.frames.items():
            out[role] += frame.by_s()
        return out
