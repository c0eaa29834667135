"""Optimal strategies for windows of one width on a wide attribute, by block elimination.

A window is an interval of exactly w consecutive cells of the n cells of a line.  As in
`engine.residuals.interval_solver`, a query q is stored as its differences z_k = q_k - q_(k+1):
there are m = n - 1 of them on a residual space, and m = n on the whole attribute, where q_(n+1) =
0.  A window has at most two differences that are not 0: +1 at its last cell and -1 at the cell
before its first one.  So the Gram G of all windows is the Laplacian of a graph with one link from k
to k + w per window.  With dual weights mu and K = C diag(mu) C^T as in
`engine.residuals.interval_solver`, K^-1 is the Laplacian of a path of resistors with the
conductances 1/mu_i, minus a term of rank one.

Prefixes and the marginal can be measured with the windows.  A prefix has one difference that is not
0, so that prefixes add a multiple of the identity to G.  A cell is a window of width 1.  In terms
of resistors, prefixes are equal leaks from all nodes to ground, and the marginal increases the
conductance of every resistor of the path.

The dual of `engine.residuals.dual_solver` maximises f(mu) = tr (G K)^(1/2); f^2 is a lower bound on
the total variance at privacy cost 1.  The precision of the differences is Q = G (K G)^(-1/2), and
d_i = c_i^T Q c_i is the privacy cost of cell i.  Every mu proves f^2 <= optimum <= f max(d).
Quadrature for the inverse square root, with nodes s_j and weights w_j, gives

    Q = sum_j w_j (K^-1 - K^-1 Y_j K^-1),      Y_j = (K^-1 + G / s_j)^-1,
    d_i = sum_j (w_j / mu_i) (1 - r_ij / mu_i - (a_ij + pi_i)^2 / (mu_i sigma_j)),

where r_ij is the effective resistance between the two ends of resistor i in the network that
consists of the path and of G / s_j.  For example, every link has the conductance 1/s_j.  The last
term comes from the center pi: a_ij is the drop of the potential u_j over resistor i, and sigma_j is
the pivot of the rank-one term.  Without a center, on the whole attribute, this term is 0.

Resistances are entries of the inverse of the network's Laplacian at neighbouring nodes.  They are
computed by elimination of blocks of nodes.  If the nodes are eliminated in their order, a block has
w nodes.  If n/w is small, nodes with equal remainders of the division by w are eliminated together,
so that a block has about 2 n/w nodes.  An evaluation takes O(m b^2) operations per quadrature node
for blocks of b nodes.

The network and the elimination are our work; the quadrature is that of
`engine.residuals.interval_solver`.

**Symmetric networks.**  If the conductances are the same in reverse order and nodes are eliminated
in their order, the elimination of the nodes from the right end is the mirror image of that from the
left end.  So only the left half is eliminated, block by block, and the middle block is corrected
for both halves.  Then the inverse of the Laplacian is computed for the left half, which takes half
of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from engine._arrays import Array, Index
from engine.residuals.interval_solver import (
    QUADRATURE_LOG_PRECISION,
    DualSolution,
    IntervalGram,
    IntervalSpace,
    gram_product,
    inverse_root_quadrature,
    maximise,
    total_square,
)


@dataclass(frozen=True, kw_only=True)
class SymmetricNetwork:
    """Left half and middle block of a symmetric network.

    Attributes
    ----------
    cells : number n of resistors of the path.
    width : distance w of the two ends of a link.
    has_grounded_ends : True if both ends of the path are ground.  Otherwise the middle node is.
    order : number of nodes of the middle block, and of all blocks but the first one, which may have
        fewer nodes.
    """

    cells: int
    width: int
    has_grounded_ends: bool
    order: int

    @classmethod
    def of(
        cls, cells: int, width: int, *, has_grounded_ends: bool, min_order: int
    ) -> SymmetricNetwork | None:
        """Return the network with blocks of at least ``min_order`` nodes; None if it is too small.

        The left half of a network must have at least as many nodes as a block.
        """
        order = max(width, min_order)
        nodes = cells - 1 if has_grounded_ends else cells + 1
        # the order is increased by 1 if this is necessary to get two halves with equally many nodes
        order += (nodes - order) % 2
        if nodes < 3 * order:
            return None
        return cls(cells=cells, width=width, has_grounded_ends=has_grounded_ends, order=order)

    @property
    def nodes(self) -> int:
        """Number of nodes of the complete network; grounded ends are not counted."""
        return self.cells - 1 if self.has_grounded_ends else self.cells + 1

    @property
    def half(self) -> int:
        """Number of nodes to the left of the middle block."""
        return (self.nodes - self.order) // 2

    @property
    def blocks(self) -> int:
        """Number of blocks of the left half and the middle."""
        return -(-self.half // self.order) + 1

    @property
    def missing(self) -> int:
        """Number of nodes by which the first block is smaller than every other block."""
        return (self.blocks - 1) * self.order - self.half

    def potentials(
        self, conductance: Array, link: Array, leak: Array, source: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Return entries of the inverse Laplacians of networks.

        Parameters
        ----------
        conductance : of the resistors of the path, symmetric, shape (cells, networks).
        link : conductance of every link of a network, shape (networks,).
        leak : conductance from every node of a network to ground, in addition to its links and
            resistors, shape (networks,).  Must be 0 if ``has_grounded_ends`` is False.
        source : currents into the nodes, antisymmetric, shape (nodes,); None for no currents.

        Returns
        -------
        diagonal : diagonal entries for the first ``half + order`` nodes, which are the left half
            and the middle block, shape (half + order, networks).
        along_path : entries at neighbouring nodes among these, shape (half + order - 1, networks).
        solution : potentials of these nodes; zero without currents; shape of ``diagonal``.
        """
        order, missing, shown = self.order, self.missing, self.half + self.order
        first = int(self.has_grounded_ends)
        # node t of the network is node t + first of a path with ends 0 and n
        ends = np.pad(conductance, [(1, 1), (0, 0)])
        node = np.arange(first, first + shown)
        links = (node >= self.width).astype(float) + (node + self.width <= self.cells)
        diagonal = (ends[:-1] + ends[1:])[node] + links[:, None] * link + leak
        path = conductance[first : first + shown - 1]
        blocks = self._laplacian(diagonal, path, link)
        # resistors between the last node of a block and the first node of the next one
        joints = path[order - 1 - missing :: order]
        currents = np.zeros((self.blocks * order, len(link)))
        if source is not None:
            currents[missing:] = source[:shown, None]
        solution = (
            currents.reshape(self.blocks, order, len(link)).transpose(0, 2, 1)[..., None].copy()
        )

        for p in range(self.blocks - 1):
            blocks[p] = np.linalg.inv(blocks[p])
            change = self._coupled(p, self._coupled(p, blocks[p], joints, link).mT, joints, link)
            solution[p] = blocks[p] @ solution[p]
            current = self._coupled(p, solution[p].mT, joints, link).mT
            if p == self.blocks - 2:
                # the right half is the mirror image, with currents of the opposite sign
                change = change + change[:, ::-1, ::-1]
                current = current - current[:, ::-1]
            blocks[p + 1] -= change
            solution[p + 1] -= current
        middle = blocks[-1]
        if not self.has_grounded_ends:
            ground = order // 2
            middle[:, ground, :] = middle[:, :, ground] = 0.0
            middle[:, ground, ground] = 1.0
        middle[:] = np.linalg.inv(middle)
        if not self.has_grounded_ends:
            middle[:, ground, ground] = 0.0
        solution[-1] = middle @ solution[-1]
        across = np.empty((self.blocks - 1, len(link)))
        for p in range(self.blocks - 2, -1, -1):
            eliminated = self._coupled(p, blocks[p], joints, link)
            product = eliminated @ blocks[p + 1]
            across[p] = -product[:, -1, 0]
            blocks[p] += product @ eliminated.mT
            solution[p] -= eliminated @ solution[p + 1]
        position = np.arange(order)
        entries = blocks[:, :, position, position].transpose(0, 2, 1).reshape(-1, len(link))
        along = np.empty((self.blocks, order, len(link)))
        along[:, :-1] = blocks[:, :, position[:-1], position[1:]].transpose(0, 2, 1)
        along[:-1, -1] = across
        return (
            entries[missing:],
            along.reshape(-1, len(link))[missing:-1],
            solution[..., 0].transpose(0, 2, 1).reshape(-1, len(link))[missing:],
        )

    def _laplacian(self, diagonal: Array, path: Array, link: Array) -> Array:
        """Return the diagonal blocks of the Laplacians, shape (blocks, networks, order, order).

        Nodes that the first block does not have are completed by an identity matrix.

        Parameters
        ----------
        diagonal : summed conductance at every node, shape (half + order, networks).
        path : conductance between neighbouring nodes, shape (half + order - 1, networks).
        link : conductance of every link of a network, shape (networks,).
        """
        order, missing = self.order, self.missing
        blocks = np.zeros((self.blocks, len(link), order, order))
        position = np.arange(order)
        on_diagonal = np.ones((self.blocks * order, len(link)))
        on_diagonal[missing:] = diagonal
        blocks[:, :, position, position] = on_diagonal.reshape(self.blocks, order, -1).transpose(
            0, 2, 1
        )
        off_diagonal = np.zeros((self.blocks * order, len(link)))
        off_diagonal[missing:-1] = path
        # the last entry of every block connects two blocks and is dropped
        off_diagonal = off_diagonal.reshape(self.blocks, order, -1).transpose(0, 2, 1)[..., :-1]
        blocks[:, :, position[:-1], position[1:]] -= off_diagonal
        blocks[:, :, position[1:], position[:-1]] -= off_diagonal
        for p in range(self.blocks):
            start = np.arange(missing if p == 0 else 0, order - self.width)
            blocks[p][:, start, start + self.width] -= link[:, None]
            blocks[p][:, start + self.width, start] -= link[:, None]
        return blocks

    def _coupled(self, block: int, left: Array, joints: Array, link: Array) -> Array:
        """Return ``left`` times the entries of the Laplacians between a block and the next one.

        Parameters
        ----------
        block : index of the block.
        left : array of shape (networks, rows, order).
        joints : conductances between the last node of a block and the first one of the next block,
            shape (blocks - 1, networks).
        link : conductance of every link of a network, shape (networks,).
        """
        # a link leads from node i of the block to node i - shift of the next one
        shift = self.order - self.width
        start = max(shift, self.missing if block == 0 else 0)
        product = np.zeros_like(left)
        product[..., start - shift : self.width] = -link[:, None, None] * left[..., start:]
        product[..., 0] -= joints[block][:, None] * left[..., -1]
        return product


# smallest weight of a cell, as a multiple of the uniform weight 1/n
MIN_SHARE = 1e-4
# A step of the search counts as a decrease of f if f decreases by more than this share.  Rounding
# errors of f are smaller.
DECREASE_TOLERANCE = 1e-8
# Until a search has proved this relative RMSE gap, it uses a quadrature formula with this negative
# natural logarithm of the relative error, which takes half the time.
ROUGH_GAP, ROUGH_LOG_PRECISION = 2e-5, 14.0
# blocks of nodes have at least this number of nodes, because NumPy takes long per small matrix
MIN_BLOCK = 16
# Number of entries of the blocks of all quadrature nodes above which quadrature nodes are divided
# into batches, to limit memory.  A batch has at least one node.
BATCH_ENTRIES = 1 << 22
# a weight of the total at most this large counts as 0
MIN_TOTAL_WEIGHT = 1e-9
# the sum of a center over every window counts as 0 below this share of the largest entry of the
# center
CENTER_TOLERANCE = 1e-11


@dataclass(frozen=True, kw_only=True)
class WindowGram:
    """Gram of a weighted mix of windows of one width, prefixes, the marginal and the total.

    Attributes
    ----------
    cells : number of cells of the attribute.
    width : number of cells of a window, at least 1 and less than ``cells``.
    total : weight of the total, at least 0.
    weight : weight of every window, greater than 0.
    prefix, marginal : weight of every prefix and of every cell, at least 0.
    """

    cells: int
    width: int
    total: float = 0.0
    weight: float = 1.0
    prefix: float = 0.0
    marginal: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.width < self.cells:
            raise ValueError(
                f"The windows have a width of {self.width} cells, but the attribute has"
                f" {self.cells} cells. Use a width from 1 to the number of cells minus 1."
            )

    @property
    def count(self) -> int:
        """Number of windows."""
        return self.cells - self.width + 1

    @cached_property
    def others(self) -> IntervalGram | None:
        """Gram of the prefixes and the marginal; None if there are only windows."""
        if not (self.prefix or self.marginal):
            return None
        return IntervalGram(cells=self.cells, prefix=self.prefix, marginal=self.marginal)

    @property
    def spans_total(self) -> bool:
        """Whether the total is a sum of queries, or is measured itself."""
        is_sum_of_windows = self.cells % self.width == 0
        return self.others is not None or is_sum_of_windows or self.total > MIN_TOTAL_WEIGHT

    @property
    def residual_rank(self) -> int:
        """Rank of the queries on the residual space, for every center."""
        if self.others is not None:
            return self.cells - 1
        return self.count - (self.cells % self.width == 0)

    def sums(self, table: Array) -> Array:
        """Return the sums of a table, shape (n,), over all windows, shape (count,)."""
        prefixes = np.concatenate([[0.0], np.cumsum(table)])
        return np.asarray(prefixes[self.width :] - prefixes[: self.count])

    def spread(self, values: Array) -> Array:
        """Return for every cell the sum of ``values`` over the windows that contain the cell.

        The last axis of ``values`` has one entry per window, that of the result one per cell.
        """
        cell = np.arange(self.cells)
        prefixes = np.zeros((*values.shape[:-1], self.count + 1))
        np.cumsum(values, axis=-1, out=prefixes[..., 1:])
        first = np.maximum(cell - self.width + 1, 0)
        last = np.minimum(cell, self.count - 1)
        return np.asarray(prefixes[..., last + 1] - prefixes[..., first])

    def total_square(self, pi: Array) -> float:
        """Return the weighted sum of the squared answers to the table ``pi``, shape (n,)."""
        sums = self.sums(pi)
        square = self.weight * float(sums @ sums) + self.total * float(pi.sum()) ** 2
        return square if self.others is None else square + total_square(self.others, pi)

    def normalized(self) -> WindowGram:
        """Return the Gram divided by the weight of the windows; ratios of weights are rounded."""
        if self.weight == 1.0 and self.others is None:
            return self

        def ratio(weight: float) -> float:
            return float(f"{weight / self.weight:.12e}")

        return WindowGram(
            cells=self.cells,
            width=self.width,
            total=ratio(self.total),
            prefix=ratio(self.prefix),
            marginal=ratio(self.marginal),
        )

    def product(self, table: Array) -> Array:
        """Return the Gram on cells times a table, shape (n,), without the total."""
        product = self.weight * self.spread(self.sums(table))
        return product if self.others is None else product + gram_product(self.others, table)


# expected number of quadrature nodes
QUADRATURE_NODES = 36
# Expected times in seconds of an evaluation: per block of nodes, and per multiplication in products
# and inverses of blocks.
BLOCK_SECONDS, MULTIPLICATION_SECONDS = 2e-4, 8e-11


def window_evaluation_seconds(gram: WindowGram) -> float:
    """Return the expected time of one evaluation of the dual, in seconds on one idle core."""
    space = WindowSpace(gram=gram)
    network = space.symmetric_network or space.network
    multiplications = 4.0 * QUADRATURE_NODES * network.blocks * network.order**3
    return BLOCK_SECONDS * network.blocks + MULTIPLICATION_SECONDS * multiplications


def window_bytes(gram: WindowGram) -> float:
    """Return the expected memory of one evaluation of the dual, in bytes."""
    network = WindowSpace(gram=gram).network
    block_entries = network.blocks * network.order**2
    return 8.0 * (
        min(QUADRATURE_NODES * block_entries, block_entries + BATCH_ENTRIES)
        + 8.0 * QUADRATURE_NODES * network.nodes
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowSpace:
    """Windows and other queries on one attribute, and whether the total is measured with them.

    Attributes
    ----------
    gram : weights of the queries.  On a residual space the weight of the total has no influence.
    center : center of the residual space, sum 1, shape (n,); None for uniform.
    whole : True if the whole attribute is measured; in this case ``center`` is None.  False if only
        the residual space is measured.
    """

    gram: WindowGram
    center: Array | None = None
    whole: bool = False

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.gram.cells

    @property
    def key(self) -> tuple[WindowGram, bool]:
        """Key that is equal for spaces with similar dual weights: those of all centers."""
        return self.gram, self.whole

    @cached_property
    def pi(self) -> Array:
        """Center of the residual space, shape (n,)."""
        return np.full(self.cells, 1.0 / self.cells) if self.center is None else self.center

    @cached_property
    def has_center(self) -> bool:
        """Whether the center has an influence on the measured queries.

        It has none on the whole attribute, or if there are only windows and its sum over every
        window is 0.
        """
        if self.gram.others is not None:
            return not self.whole
        sums = np.abs(self.gram.sums(self.pi))
        return not self.whole and float(sums.max()) > CENTER_TOLERANCE * np.abs(self.pi).max()

    @property
    def is_symmetric(self) -> bool:
        """Whether the measured queries are known to be invariant under reversal."""
        if self.whole and self.gram.prefix > 0.0:
            return False
        return not self.has_center or np.array_equal(self.pi, self.pi[::-1])

    @property
    def total(self) -> float:
        """Weight of the total; 0 on a residual space."""
        return self.gram.total if self.whole else 0.0

    def cell_traces(self) -> Array:
        """Return for every cell the summed squares of the queries on it, shape (n,)."""
        gram = self.gram
        traces = gram.weight * gram.spread(np.ones(gram.count)) + self.total
        if self.has_center:
            sums = gram.sums(self.pi)
            traces = traces - 2.0 * gram.weight * gram.spread(sums) + gram.weight * (sums @ sums)
        if gram.others is not None:
            others = IntervalSpace(gram=gram.others, center=self.center, whole=self.whole)
            traces += others.cell_traces()
        return np.asarray(traces)

    def eigenvalue_range(self, mass: Array) -> tuple[float, float]:
        """Return a lower and an upper bound on the nonzero eigenvalues of G K.

        ``mass`` holds the weights mu of the cells, shape (n,) with sum 1.
        """
        high = float(mass @ self.cell_traces())
        # Gershgorin's theorem for the Laplacian of the path, which is at least K^-1
        inverse_high = 2.0 * float((1.0 / mass[:-1] + 1.0 / mass[1:]).max())
        return min(self._lowest_eigenvalue() / inverse_high, high), high

    def _lowest_eigenvalue(self) -> float:
        """Return a lower bound on the nonzero eigenvalues of G."""
        gram = self.gram
        if gram.others is not None:
            # The Gram of the windows can have eigenvalues of 0, so only those of the other queries
            # count: the prefixes' Gram is the identity, and the marginal's is that of a path.
            steps = 2 * self.cells + 1 if self.whole else self.cells
            return gram.prefix + gram.marginal * (2.0 - 2.0 * math.cos(math.pi / steps))
        # The links divide the nodes into chains k, k + w, k + 2 w, ... of at most ``length`` nodes.
        # A chain is connected to ground at no end, at one end or at both ends.
        length = math.ceil(self.network.nodes / gram.width)
        lowest = gram.weight * (2.0 - 2.0 * math.cos(math.pi / (2 * length + 2)))
        if self.total > MIN_TOTAL_WEIGHT:
            # The inverse of the Laplacian of a chain has the resistances to ground as diagonal.
            lowest = min(lowest, 1.0 / (length / self.total + length**2 / gram.weight))
        return lowest

    def conductances(self, mass: Array, s: Array) -> tuple[Array, Array, Array]:
        """Return the conductances of the networks for quadrature nodes ``s``, shape (networks,).

        ``mass`` holds the weights mu of the cells, shape (n,) with sum 1.  The results are those of
        the resistors of the path, shape (n, networks), of every link, and of the leaks from every
        node to ground, shapes (networks,).
        """
        path = 1.0 / mass[:, None] + self.gram.marginal / s
        return path, self.gram.weight / s, self.gram.prefix / s

    @cached_property
    def symmetric_network(self) -> SymmetricNetwork | None:
        """The network for elimination up to its middle; None if that does not apply or is slow.

        It applies if the space is symmetric and the total is not measured.  It is slow if blocks of
        equal remainders are smaller than blocks in the order of the nodes.
        """
        has_far_link = self.total > MIN_TOTAL_WEIGHT
        if not self.is_symmetric or has_far_link or self.network.has_remainder_blocks:
            return None
        return SymmetricNetwork.of(
            self.cells, self.gram.width, has_grounded_ends=self.has_center, min_order=MIN_BLOCK
        )

    @cached_property
    def network(self) -> _Network:
        """Nodes, resistors and links, and the blocks in which nodes are eliminated."""
        return _Network(
            cells=self.cells,
            width=self.gram.width,
            nodes=self.cells - 1 if self.has_center else self.cells,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Edges:
    """Edges between nodes of a network, sorted by the blocks of their ends.

    Attributes
    ----------
    inside, crossing : indices of the edges with both ends in one block, and of the edges between a
        block and the next one.
    block, first, second : for every edge, the lower block of its ends and the positions of the ends
        in their blocks; the end in the lower block is ``first``.
    between : for every block but the last one, two arrays with the indices of the edges to the next
        block.  The edges of an array have no end in common.
    """

    inside: Index
    crossing: Index
    block: Index
    first: Index
    second: Index
    between: list[list[Index]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Network:
    """Path of resistors with links over a fixed distance, and blocks for its elimination.

    Attributes
    ----------
    cells : number of resistors of the path.  Resistor i is between the nodes i - 1 and i.
    width : distance of the two ends of a link.
    nodes : number of nodes.  Nodes before the first and after the last one are ground.
    """

    cells: int
    width: int
    nodes: int
    # for every node, its block and its position in the block
    block: Index = field(init=False)
    position: Index = field(init=False)
    # number of blocks, and number of nodes per block
    blocks: int = field(init=False)
    order: int = field(init=False)

    def __post_init__(self) -> None:
        """Assign every node to a block, and to a position in its block."""
        node, m, w = np.arange(self.nodes), self.nodes, self.width
        nodes_per_remainder = math.ceil(m / w)
        if self.has_remainder_blocks:
            # The nodes with the remainders r and w - 1 - r are one block.  A step of the path leads
            # to the same block or to a neighbouring one, also from remainder w - 1 to remainder 0.
            remainder, quotient = node % w, node // w
            is_low = remainder <= w - 1 - remainder
            block = np.where(is_low, remainder, w - 1 - remainder)
            position = np.where(is_low, quotient, nodes_per_remainder + quotient)
            order = 2 * nodes_per_remainder
        else:
            order = max(w, min(MIN_BLOCK, m))
            block, position = node // order, node % order
        values = {"block": block, "position": position, "order": order}
        for name, value in (values | {"blocks": int(block.max()) + 1}).items():
            object.__setattr__(self, name, value)

    @property
    def has_remainder_blocks(self) -> bool:
        """Whether a block contains nodes with equal remainders, and not consecutive nodes."""
        return 2 * math.ceil(self.nodes / self.width) < self.width

    @cached_property
    def path(self) -> _Edges:
        """The resistors between two nodes: resistor i + 1 between the nodes i and i + 1."""
        node = np.arange(self.nodes - 1)
        return self._edges(node, node + 1)

    @cached_property
    def link_starts(self) -> Index:
        """Lower end of every link between two nodes, shape (links,)."""
        return np.arange(max(min(self.nodes, self.cells) - self.width, 0))

    @cached_property
    def links(self) -> _Edges:
        """The links between two nodes."""
        return self._edges(self.link_starts, self.link_starts + self.width)

    @cached_property
    def link_counts(self) -> Array:
        """Number of links of every node, with those to ground, shape (nodes,)."""
        counts = np.zeros(self.nodes)
        # a window begins after the node ``lower`` and ends at the node ``upper``
        lower = np.arange(-1, self.cells - self.width)
        upper = lower + self.width
        counts[lower[lower >= 0]] += 1.0
        counts[upper[upper < self.nodes]] += 1.0
        return counts

    def _edges(self, a: Index, b: Index) -> _Edges:
        """Return the edges between the nodes ``a`` and ``b``, both of shape (edges,)."""
        # edges whose end ``a`` is in a higher block than ``b``
        is_swapped = self.block[a] > self.block[b]
        low, high = np.where(is_swapped, b, a), np.where(is_swapped, a, b)
        block = self.block[low]
        is_inside = block == self.block[high]
        return _Edges(
            inside=np.flatnonzero(is_inside),
            crossing=np.flatnonzero(~is_inside),
            block=block,
            first=self.position[low],
            second=self.position[high],
            between=[
                [
                    np.flatnonzero(~is_inside & (block == p) & (is_swapped == swapped))
                    for swapped in (False, True)
                ]
                for p in range(self.blocks - 1)
            ],
        )

    def solve(
        self, conductance: Array, link: Array, leak: Array, at_last: Array, source: Array | None
    ) -> _Potentials:
        """Invert the Laplacians of networks.

        Parameters
        ----------
        conductance : of the resistors of the path, shape (cells, networks).
        link : conductance of all links of a network, shape (networks,).
        leak : conductance from every node to ground in addition to its resistors and links, shape
            (networks,).
        at_last : conductance that is added to that of the last node to ground, shape (networks,).
        source : currents into the nodes, shape (nodes,); None to compute no potentials.
        """
        m, n, count, b = self.nodes, self.cells, len(link), self.order
        diagonal = np.array(conductance[:m])
        diagonal[: n - 1] += conductance[1:]
        # diagonal blocks of the Laplacian, which are replaced by those of its inverse; a block that
        # is not full is completed by an identity matrix
        blocks = np.zeros((self.blocks, count, b, b))
        blocks[:, :, np.arange(b), np.arange(b)] = 1.0
        on_diagonal = diagonal + self.link_counts[:, None] * link + leak
        on_diagonal[-1] += at_last
        blocks[self.block, :, self.position, self.position] = on_diagonal
        values = (
            (self.path, -conductance[1:m]),
            (self.links, np.broadcast_to(-link, (len(self.link_starts), count))),
        )
        for edges, entries in values:
            k = edges.inside
            for i, j in ((edges.first[k], edges.second[k]), (edges.second[k], edges.first[k])):
                # an edge of the path and a link may connect the same two nodes
                blocks[edges.block[k], :, i, j] += entries[k]

        def couplings(p: int) -> Iterator[tuple[Index, Index, Array]]:
            """Yield the nonzero entries between block p and the next one: rows, columns, values."""
            for edges, entries in values:
                for k in edges.between[p]:
                    if len(k):
                        yield edges.first[k], edges.second[k], entries[k].T

        def coupled(p: int, left: Array) -> Array:
            """Return ``left`` times the entries of the Laplacian between block p and the next."""
            product = np.zeros_like(left)
            for i, j, entries in couplings(p):
                product[:, :, j] += left[:, :, i] * entries[:, None, :]
            return product

        sources = np.zeros((self.blocks, count, b))
        if source is not None:
            sources[self.block, :, self.position] = source[:, None]
        # Forward elimination.  Afterwards ``blocks[p]`` has the inverse of the pivot block p.
        for p in range(self.blocks):
            if p:
                previous = coupled(p - 1, blocks[p - 1])
                for i, j, entries in couplings(p - 1):
                    blocks[p][:, j, :] -= entries[:, :, None] * previous[:, i, :]
                    if source is not None:
                        sources[p][:, j] -= entries * sources[p - 1][:, i]
            blocks[p] = np.linalg.inv(blocks[p])
            if source is not None:
                sources[p] = (blocks[p] @ sources[p][:, :, None])[:, :, 0]
        # Back substitution from the last block to the first.  Afterwards ``blocks`` has the
        # diagonal blocks of the inverse, and ``crossing`` its entries at the ends of each edge.
        crossing = [np.empty((len(entries), count)) for _, entries in values]
        for p in range(self.blocks - 2, -1, -1):
            eliminated = coupled(p, blocks[p])
            product = eliminated @ blocks[p + 1]
            for (edges, _), target in zip(values, crossing, strict=True):
                k = np.concatenate(edges.between[p])
                target[k] = -product[:, edges.first[k], edges.second[k]].T
            blocks[p] += product @ eliminated.transpose(0, 2, 1)
            if source is not None:
                sources[p] -= (eliminated @ sources[p + 1][:, :, None])[:, :, 0]
        for (edges, _), target in zip(values, crossing, strict=True):
            k = edges.inside
            target[k] = blocks[edges.block[k], :, edges.first[k], edges.second[k]]
        return _Potentials(
            diagonal=blocks[self.block, :, self.position, self.position],
            along_path=crossing[0],
            along_links=crossing[1],
            solution=sources[self.block, :, self.position],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Potentials:
    """Entries of the inverses of Laplacians, and potentials of their nodes.

    Attributes
    ----------
    diagonal : diagonal entries, shape (nodes, networks).
    along_path, along_links : entries at the two ends of each resistor between two nodes, and of
        each link between two nodes, shapes (nodes - 1, networks) and (links, networks).
    solution : potentials for the given source; 0 without a source; shape (nodes, networks).
    """

    diagonal: Array
    along_path: Array
    along_links: Array
    solution: Array

    def resistances(self, cells: int) -> Array:
        """Return the effective resistance between the ends of every resistor, (cells, networks)."""
        nodes = len(self.diagonal)
        resistance = np.zeros((cells, self.diagonal.shape[1]))
        resistance[:nodes] += self.diagonal
        resistance[1:] += self.diagonal[: cells - 1]
        resistance[1:nodes] -= 2.0 * self.along_path
        return resistance

    def drops(self, cells: int) -> Array:
        """Return the drop of the potential over every resistor, shape (cells, networks)."""
        drop = np.zeros((cells, self.solution.shape[1]))
        drop[: len(self.solution)] += self.solution
        drop[1:] -= self.solution[: cells - 1]
        return drop


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Networks of a batch of quadrature nodes, and the rank-one term of the center.

    Attributes
    ----------
    s, w : quadrature nodes and their weights, shape (networks,).
    potentials : entries of the inverse Laplacians.
    sigma : pivot of the rank-one term, shape (networks,); 1 without a center.
    """

    s: Array
    w: Array
    potentials: _Potentials
    sigma: Array


def _batches(
    space: WindowSpace,
    mass: Array,
    source: Array | None = None,
    log_precision: float = QUADRATURE_LOG_PRECISION,
) -> Iterator[_Batch]:
    """Yield the inverse Laplacians for all quadrature nodes, in batches.

    ``mass`` holds the weights mu of the cells, shape (n,) with sum 1.  ``source`` holds currents
    into the nodes.  If the space has a center, ``source`` is replaced by the currents of the center.
    """
    # K^-1 is the Laplacian of a path with the conductances 1 / mu, minus a rank-one term, which
    # comes from the center pi.  The currents are the differences of pi / mu, and ``sigma`` is the
    # pivot of the rank-one term.
    network = space.network
    nodes, weights = inverse_root_quadrature(*space.eigenvalue_range(mass), log_precision)
    ratio = space.pi / mass
    if space.has_center:
        source = np.diff(ratio)
    step = max(1, BATCH_ENTRIES // (network.blocks * network.order**2))
    for start in range(0, len(nodes), step):
        s, w = nodes[start : start + step], weights[start : start + step]
        potentials = network.solve(
            *space.conductances(mass, s), at_last=space.total / s, source=source
        )
        sigma = np.ones_like(s)
        if space.has_center and source is not None:
            sigma = float(space.pi @ ratio) - source @ potentials.solution
        yield _Batch(s=s, w=w, potentials=potentials, sigma=sigma)


def _cell_norms(space: WindowSpace, mass: Array, log_precision: float) -> Array:
    """Return the privacy cost d_i = c_i^T Q c_i of every cell, shape (n,).

    Its mean under the weights mu = ``mass`` is the dual value f(mu).

    Notes
    -----
    d_i = sum_j (w_j / mu_i) (1 - r_ij / mu_i - (a_ij + pi_i)^2 / (mu_i sigma_j)) with the effective
    resistance r_ij and the drop a_ij of the potential over resistor i in network j.
    """
    if space.symmetric_network is not None:
        return _symmetric_cell_norms(space, space.symmetric_network, mass, log_precision)
    n, norms = space.cells, np.zeros(space.cells)
    for batch in _batches(space, mass, log_precision=log_precision):
        potentials = batch.potentials
        share = 1.0 - potentials.resistances(n) / mass[:, None]
        if space.has_center:
            drop = potentials.drops(n) + space.pi[:, None]
            share -= drop**2 / (mass[:, None] * batch.sigma)
        norms += (share / mass[:, None]) @ batch.w
    return np.maximum(norms, 0.0)


def _symmetric_cell_norms(
    space: WindowSpace, network: SymmetricNetwork, mass: Array, log_precision: float
) -> Array:
    """Return the result of `_cell_norms` for a symmetric space and symmetric weights ``mass``."""
    n, half = space.cells, (space.cells + 1) // 2
    nodes, weights = inverse_root_quadrature(*space.eigenvalue_range(mass), log_precision)
    ratio, left_mass = space.pi / mass, mass[:half, None]
    source = np.diff(ratio) if space.has_center else None
    # costs of the cells in the left half
    norms = np.zeros(half)
    step = max(1, BATCH_ENTRIES // (network.blocks * network.order**2))
    for start in range(0, len(nodes), step):
        s, w = nodes[start : start + step], weights[start : start + step]
        diagonal, along_path, solution = network.potentials(*space.conductances(mass, s), source)
        if source is None:
            # the path begins at node 0, which is not ground
            resistance = diagonal[:half] + diagonal[1 : half + 1] - 2.0 * along_path[:half]
            share = 1.0 - resistance / left_mass
        else:
            resistance = diagonal[:half].copy()
            resistance[1:] += diagonal[: half - 1] - 2.0 * along_path[: half - 1]
            drop = np.diff(solution[:half], axis=0, prepend=0.0)
            # the potentials of the right half are those of the left half with the opposite sign
            middle = network.nodes // 2
            sigma = float(space.pi @ ratio) - 2.0 * source[:middle] @ solution[:middle]
            share = 1.0 - resistance / left_mass
            share -= (drop + space.pi[:half, None]) ** 2 / (left_mass * sigma)
        norms += (share / left_mass) @ w
    norms = np.maximum(norms, 0.0)
    return np.concatenate([norms, norms[: n - half][::-1]])


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowSolution(DualSolution):
    """Dual weights for windows, with the strategy that they determine and its gap.

    All variances are in counts^2 at privacy cost 1.  If only a residual space is measured, they are
    the variances of the queries' components in this space.

    Attributes
    ----------
    space : the windows, and whether a residual space or the whole attribute is measured.
    """

    space: WindowSpace

    @property
    def window_variances(self) -> Array:
        """Variance of every window, shape (windows,)."""
        return self.variances[0]

    @cached_property
    def variances(self) -> tuple[Array, Array, Array]:
        """Variances of every window, of every prefix and of every cell.

        The shapes are (windows,), (n,) and (n,).  The variances of prefixes and cells are finite
        only if these queries are in the span of the measured ones.
        """
        # A query is a difference of two nodes of the network, or one node.  Before the scaling to
        # sensitivity 1, its variance is sum_j w_j / s_j times the effective resistance between both
        # nodes in network j, plus a term for the center.
        n, nodes = self.space.cells, self.space.network.nodes
        windows, prefixes, cells = np.zeros(self.space.gram.count), np.zeros(n), np.zeros(n)
        for batch in _batches(self.space, self.dual):
            potentials, weights = batch.potentials, batch.w / batch.s
            windows += self._window_squares(batch) @ weights
            squares, of_cells = potentials.diagonal, potentials.resistances(n)
            if self.space.has_center:
                squares = squares + potentials.solution**2 / batch.sigma
                of_cells += potentials.drops(n) ** 2 / batch.sigma
            prefixes[:nodes] += squares @ weights
            cells += of_cells @ weights
        windows, prefixes, cells = (
            np.maximum(v, 0.0) * self.norms.max() for v in (windows, prefixes, cells)
        )
        return windows, prefixes, cells

    def _window_squares(self, batch: _Batch) -> Array:
        """Return the summand of every network in the variance of every window.

        The shape is (windows, networks).
        """
        space, nodes, potentials = self.space, self.space.network.nodes, batch.potentials
        # A window is the difference between its last node (``upper``) and the node before its first
        # one (``lower``).  The potential of nodes that do not exist is 0.
        lower = np.arange(-1, space.cells - space.gram.width)
        upper = lower + space.gram.width
        has_lower, has_upper = lower >= 0, upper < nodes
        squares = np.zeros((space.gram.count, len(batch.s)))
        squares[has_lower] += potentials.diagonal[lower[has_lower]]
        squares[has_upper] += potentials.diagonal[upper[has_upper]]
        squares[has_lower & has_upper] -= 2.0 * potentials.along_links
        if space.has_center:
            component = np.zeros_like(squares)
            component[has_lower] -= potentials.solution[lower[has_lower]]
            component[has_upper] += potentials.solution[upper[has_upper]]
            squares += component**2 / batch.sigma
        return squares

    def total_variance(self, gram: WindowGram | IntervalGram) -> float:
        """Return the sum of weight times variance of all queries, without the total.

        ``gram`` has windows of this width, or has marginal, prefix and suffix queries only.
        """
        windows, prefixes, cells = (float(v.sum()) for v in self.variances)
        if isinstance(gram, WindowGram):
            return gram.weight * windows + gram.prefix * prefixes + gram.marginal * cells
        return (gram.prefix + gram.suffix) * prefixes + gram.marginal * cells

    def total_center(self) -> Array:
        """Return the center whose residual space is measured independently of the total.

        The center is Sigma 1 / (1^T Sigma 1), shape (n,), for the covariance Sigma of the estimated
        cells.  If the windows do not determine the total, the result is a center with the sum 0
        over every window.
        """
        if not self.space.whole:
            raise ValueError(
                "A residual space does not determine the total. Use the solution for all cells of "
                "the attribute."
            )
        n, width = self.space.cells, self.space.gram.width
        if not self.space.gram.spans_total:
            # periodic values with the sum 0 over a period; the last period is incomplete
            remainder = n % width
            period = np.concatenate(
                [np.full(remainder, 1.0 / remainder), np.full(width - remainder, -1.0)]
            )
            period[remainder:] /= width - remainder
            return period[np.arange(n) % width]
        # The nodes are the prefix sums of the cells.  ``covariances`` are those of the nodes with
        # the total, which is the last node; differences of nodes are cells.
        source, covariances = np.zeros(n), np.zeros(n)
        source[-1] = 1.0
        for batch in _batches(self.space, self.dual, source):
            covariances += batch.potentials.solution @ (batch.w / batch.s)
        center = np.diff(covariances, prepend=0.0) / covariances[-1]
        # the search for a symmetric center is faster, and rounding errors are not symmetric
        return np.asarray(0.5 * (center + center[::-1]))


def evaluate(
    space: WindowSpace, weights: Array, log_precision: float = QUADRATURE_LOG_PRECISION
) -> WindowSolution:
    """Return the solution that dual weights determine.

    ``weights`` have shape (n,) and any positive sum.  Weights below `MIN_SHARE` times their mean
    are raised to this value, and all weights are scaled to sum 1.  Both steps are left out if the
    sum is 1 and no weight is below half of this value.  If the space is symmetric, every weight is
    averaged with that of its mirror image.  ``log_precision`` is the negative natural logarithm of
    the relative error of the costs.
    """
    mass, floor = np.asarray(weights), MIN_SHARE * float(weights.sum()) / space.cells
    # Weights of an earlier solution are not scaled again, because this would change their last
    # digits.
    if abs(float(mass.sum()) - 1.0) > 1e-12 or mass.min() < 0.5 * floor:
        mass = np.maximum(mass, floor)
        mass = mass / mass.sum()
    if space.is_symmetric:
        mass = 0.5 * (mass + mass[::-1])
    norms = _cell_norms(space, mass, log_precision)
    if space.is_symmetric and space.symmetric_network is None:
        # The costs of the last cells are copied from their mirror images.  The path of resistors
        # begins at ground, but does not end there.  So if the last cells have tiny weights, costs
        # from the resistances of these cells would be differences of almost equal numbers.
        half = space.cells // 2
        norms[-half:] = norms[:half][::-1]
    return WindowSolution(space=space, dual=mass, norms=norms)


def solve(
    space: WindowSpace,
    *,
    gap: float = 5e-7,
    evaluations: int = 300,
    deadline: float = math.inf,
    start: Array | None = None,
) -> WindowSolution:
    """Search for dual weights until they prove the relative RMSE gap, or a limit is reached.

    Parameters and result are those of `engine.residuals.interval_solver.solve`.
    """
    is_rough = gap < ROUGH_GAP

    def next_solution(weights: Array) -> WindowSolution:
        nonlocal is_rough
        if is_rough:
            solution = evaluate(space, weights, ROUGH_LOG_PRECISION)
            if solution.gap > ROUGH_GAP:
                return solution
            is_rough = False
        return evaluate(space, weights)

    solution = maximise(
        next_solution,
        next_solution(np.ones(space.cells) if start is None else start),
        gap=gap,
        evaluations=evaluations,
        deadline=deadline,
        min_share=MIN_SHARE,
        tolerance=DECREASE_TOLERANCE,
        # small weights that decrease have little influence on how steps are combined
        ignores_vanishing=True,
    )
    if not is_rough:
        return solution
    # a limit ended the search, and its certificate must not have the rough error
    return replace(evaluate(space, solution.dual), evaluations=solution.evaluations)
