"""Elimination of a symmetric network of windows from its ends to its middle.

The network is that of `engine.residuals.window_solver`: a path of resistors, with a link from node
k to node k + w for every window of w cells, and equal leaks from all nodes to ground.  If the
conductances are the same in reverse order, the elimination of the nodes from the right end is the
mirror image of that from the left end.  So only the left half is eliminated, block by block, and
the middle block is corrected for both halves.  Then the inverse of the Laplacian is computed for
the left half, which takes half of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine._arrays import Array


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
