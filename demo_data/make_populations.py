"""Simulated populations in the shape of two census tables: many small areas, skewed sizes, sparse
cells.

    race_blocks   census blocks by seven yes/no answers on race and ethnicity, 2^7 cells each
    age_tracts    census tracts by age (103 cells) and sex (2 cells)

Nothing in them was counted from people.  Only rounded national figures of 2010, all of them
published, give them their shape: 49 people in the average occupied block and 4,200 in the average
tract, shares of races and of ages.  How much areas differ is chosen here, by lognormal sizes and
Dirichlet mixtures.  The randomness is seeded and meant for rehearsals; privacy noise never comes
from here.
"""

import numpy as np

RACES = ("hispanic", "white", "black", "native", "asian", "islander", "other")
# races that a person chooses -> number of such persons among a thousand in 2010
ANSWERS = {
    ("white",): 637,
    ("hispanic", "white"): 87,
    ("black",): 122,
    ("hispanic", "black"): 4,
    ("asian",): 47,
    ("native",): 7,
    ("hispanic", "native"): 2,
    ("islander",): 2,
    ("other",): 2,
    ("hispanic", "other"): 59,
    ("hispanic", "white", "other"): 10,
    ("white", "black"): 7,
    ("white", "asian"): 6,
    ("white", "native"): 6,
    ("asian", "islander"): 1,
    ("black", "native"): 1,
}
BLOCK_SIZE, BLOCK_SPREAD = (
    49.3,
    1.18,
)  # mean number of people, and standard deviation of its logarithm
SEGREGATION = 1.5  # of a Dirichlet law: the smaller, the more one group fills a block
AGES = 103
FIVE_YEARS = (
    65,
    66,
    67,
    71,
    70,
    68,
    65,
    65,
    68,
    74,
    72,
    64,
    54,
    40,
    30,
    24,
    19,
    12,
    5,
    1.3,
    0.2,
)  # of a thousand
TRACT_SIZE, TRACT_SPREAD = 4_200, 0.42
SMALL_TRACTS, SMALL_SIZE, SMALL_SPREAD = 0.015, 300, 1.2  # parks, harbours, prisons


def race_blocks(count: int, seed: int) -> np.ndarray:
    """People of `count` blocks by their answers: int64, shape (count, 128), the last of `RACES`
    varying fastest.

    >>> race_blocks(3, seed=1).shape, int(race_blocks(2000, seed=1).sum(axis=1).min())
    ((3, 128), 1)
    """
    random = np.random.default_rng([seed, 7])
    middle = np.log(BLOCK_SIZE) - BLOCK_SPREAD**2 / 2
    people = np.maximum(1, np.rint(random.lognormal(middle, BLOCK_SPREAD, count))).astype(np.int64)
    national = np.array(list(ANSWERS.values()), dtype=float)
    mixtures = random.dirichlet(SEGREGATION * national / national.sum(), size=count)
    cells = [
        sum(1 << (len(RACES) - 1 - RACES.index(name)) for name in answer) for answer in ANSWERS
    ]
    out = np.zeros((count, 1 << len(RACES)), dtype=np.int64)
    out[:, cells] = random.multinomial(people, mixtures)
    return out


def age_tracts(count: int, seed: int) -> np.ndarray:
    """People of `count` tracts by age and sex: int64, shape (count, 206), sex varying fastest.

    Tracts lean to the young or the old, and a few are colleges, retirement homes or barracks.

    >>> age_tracts(3, seed=1).shape
    (3, 206)
    """
    random, age = np.random.default_rng([seed, 103]), np.arange(AGES)
    small = random.random(count) < SMALL_TRACTS
    size = random.lognormal(np.log(TRACT_SIZE) - TRACT_SPREAD**2 / 2, TRACT_SPREAD, count)
    size = np.where(small, random.lognormal(np.log(SMALL_SIZE), SMALL_SPREAD, count), size)
    base = np.repeat(np.array(FIVE_YEARS), 5)[:AGES]
    lean = random.normal(0, 0.25, (count, 3)) @ np.stack(
        [age / 50 - 1, (age / 50 - 1) ** 2, np.cos(age / 8)]
    )
    profile = base * np.exp(lean)
    profile /= profile.sum(axis=1, keepdims=True)
    places = (
        (20, 1.5, 0.03, 0.5),
        (78, 9.0, 0.02, 0.6),
        (32, 9.0, 0.01, 0.95),
    )  # age, width, share of tracts, men
    men = np.repeat(0.492 - 0.15 * np.clip((age - 65) / 40, 0, 1)[None, :], count, axis=0)
    for middle, width, share, of_men in places:
        here = random.random(count) < share
        part = random.uniform(0.3, 0.9, count)[:, None] * here[:, None]
        bump = np.exp(-0.5 * ((age - middle) / width) ** 2)
        bump /= bump.sum()
        mixed = (1 - part) * profile + part * bump
        men = np.where(
            here[:, None], ((1 - part) * profile * men + part * bump * of_men) / mixed, men
        )
        profile = mixed
    cells = np.stack([profile * men, profile * (1 - men)], axis=2).reshape(count, -1)
    return random.multinomial(
        np.maximum(1, np.rint(size)).astype(np.int64), cells / cells.sum(axis=1, keepdims=True)
    )
