"""Attributes that another attribute determines, such as income and income squared.

If the value of attribute k determines that of attribute j, all tables with j follow from the tables
with k.  Publishing uses such a dependence (`mediators`), so that the tables with j and those with k
improve each other.  True tables that are drawn for a simulation must therefore have the dependence
as well, or else the simulated errors are too large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine._arrays import Array, Index
from engine.postprocess.partial_pooling import noise_excess
from engine.postprocess.residual_estimates import Evidence, assemble_table, contrast
from engine.residuals import Axes

# A measured table agrees with a prediction if the squared distance exceeds its expectation by at
# most this number of standard deviations.
AGREEMENT_SD = 3.0
# Logarithm of the prior odds against the assumption that one given attribute determines another,
# about 1,000 to 1.
LOG_ODDS_AGAINST = 7.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Determination:
    """How one attribute (the source) determines another one.

    Attributes
    ----------
    source : position of the source in `Evidence.names`.
    cells : cell of the determined attribute for each cell of the source, shape (n_source,).
    """

    source: int
    cells: Index = field(repr=False)


def determined_attributes(
    evidence: Evidence, contrasts: Mapping[Axes, Array]
) -> dict[int, Determination]:
    """Return the attributes that another attribute determines, according to the measurement.

    The keys of the result are positions of determined attributes.  No source is a key.  A source
    has at least as many cells as the attribute that it determines.  If the noise is large, the
    result can lack a determined attribute.  It can also contain an attribute whose value differs in
    a few records from the value that its source determines.

    ``contrasts`` are the contrasts of the published tables.
    """
    attributes = sorted(
        {a for axes in evidence.sets for a in axes}, key=lambda a: (-evidence.sizes[a], a)
    )
    determined: dict[int, Determination] = {}
    for number, attribute in enumerate(attributes):
        for source in attributes[:number]:
            if source in determined:
                continue
            cells = _determined_cells(evidence, contrasts, source, attribute)
            if cells is not None:
                determined[attribute] = Determination(source=source, cells=cells)
                break
    return determined


def _determined_cells(
    evidence: Evidence, contrasts: Mapping[Axes, Array], source: int, attribute: int
) -> Index | None:
    """Return the cell of an attribute for each cell of its source, shape (n_source,).

    The result is None if the measurement does not show that the source determines the attribute.
    """
    axes = (min(source, attribute), max(source, attribute))
    estimate = evidence.residuals.get(axes)
    if estimate is None or estimate.rank == 0:
        return None
    table = np.maximum(assemble_table(contrasts, axes), 0.0)
    table = table if axes[0] == source else table.T
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    if not rows.sum() > 0.0:
        return None
    # If the source determines the attribute, each row has one positive cell.
    cells = table.argmax(axis=1)
    predicted = np.zeros_like(table)
    predicted[np.arange(len(rows)), cells] = rows
    independent = np.outer(rows, columns) / rows.sum()

    def excess_of(prediction: Array, variance: float) -> tuple[float, float]:
        """Return the `noise_excess` of the difference between the residual and ``prediction``."""
        prediction = prediction if axes[0] == source else prediction.T
        gap = estimate.cells - estimate.projection.of(prediction)
        return noise_excess(gap, variance, estimate.rank)

    def noise_of(single: int) -> float:
        """Return the variance of the noise of a one-way residual; 0 if it was not measured."""
        residual = evidence.residuals.get((single,))
        return residual.variance if residual is not None else 0.0

    # The prediction contains the noise of the one-way table of the source.  Its residual keeps
    # 1 / n_attribute of this noise.
    variance = estimate.variance + noise_of(source) / len(columns)
    excess, standard_deviations = excess_of(predicted, variance)
    if standard_deviations > AGREEMENT_SD:
        return None
    # There are n_attribute^n_source ways in which the source could determine the attribute.  They
    # are equally probable before the measurement.
    log_ratio = (excess_of(independent, variance)[0] - excess) / (2.0 * variance)
    if log_ratio <= len(rows) * math.log(len(columns)) + LOG_ODDS_AGAINST:
        return None
    # The predicted cells must also agree with the one-way table of the attribute, because this
    # table can have less noise.
    gap = columns - np.bincount(cells, rows, len(columns))
    variance = noise_of(attribute) + noise_of(source) * len(rows) / len(columns)
    if variance > 0.0 and noise_excess(gap, variance, len(columns) - 1)[1] > AGREEMENT_SD:
        return None
    return np.asarray(cells)


def set_with_same_counts(axes: Axes, determined: Mapping[int, Determination]) -> Axes:
    """Return the attribute set on sources whose table has the same counts as that on ``axes``.

    An attribute is replaced by its source only if the attribute also determines the source.  A set
    with both an attribute and its source is returned unchanged.

    >>> same = {2: Determination(source=1, cells=np.array([1, 0]))}
    >>> set_with_same_counts((0, 2), same), set_with_same_counts((1, 2), same)
    ((0, 1), (1, 2))
    """
    sources = {
        determined[a].source
        if a in determined and len(np.unique(determined[a].cells)) == len(determined[a].cells)
        else a
        for a in axes
    }
    return tuple(sorted(sources)) if len(sources) == len(axes) else axes


def follow_sources(
    contrasts: Mapping[Axes, Array],
    determined: Mapping[int, Determination],
    sets: Iterable[Axes],
) -> dict[Axes, Array]:
    """Return contrasts of tables in which all determined attributes follow from their sources.

    Parameters
    ----------
    contrasts : contrasts of tables by attribute set.
    determined : result of `determined_attributes`.
    sets : the attribute sets whose contrasts may change.  A contrast remains if no determined
        attribute is in the set, or if there is no table on the sources.

    >>> table = np.array([[3.0, 1.0], [0.0, 2.0]])
    >>> contrasts = {(): np.array(6.0), (0,): np.array([1.0, -1.0]), (1,): np.zeros(2)}
    >>> contrasts |= {(2,): np.zeros(2), (0, 1): contrast(table), (0, 2): np.zeros((2, 2))}
    >>> same = {2: Determination(source=1, cells=np.array([0, 1]))}
    >>> follow_sources(contrasts, same, [(0, 2)])[0, 2].tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    following = dict(contrasts)
    for axes in sets:
        sources = [determined[a].source if a in determined else a for a in axes]
        source_axes = tuple(sorted(set(sources)))
        if source_axes == axes or source_axes not in contrasts:
            continue
        source_table = assemble_table(contrasts, source_axes)
        source_cells = np.indices(source_table.shape)
        # Every cell of the source table is added to the cell of the table that it determines.
        cells = [source_cells[source_axes.index(source)] for source in sources]
        cells = [
            determined[a].cells[c] if a in determined else c
            for a, c in zip(axes, cells, strict=True)
        ]
        table = np.zeros(contrasts[axes].shape)
        np.add.at(table, tuple(cells), source_table)
        following[axes] = contrast(table)
    return following
