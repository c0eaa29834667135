"""Campaign of two sessions, with a search for leaked private values.

The sessions act in turn; after each action, responses, logs and files are searched for marks.
The marks of a person are the names of ledger and dataset, values that occur only in the records,
the exact number of rows, and the bits of the released answers. Names consist of letters only, so
that no page escapes them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import psutil

from demo_data.make_synthetic import synthetic
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.server.client import Client, open_client
from tests.server.serving import RunningServer
from tests.server.uploading import upload

SCHEMA = Schema(
    [Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "y"])]
)
QUERY = "plan=" + permalink.packed(
    RequestState(workload=Workload.all_ways(SCHEMA, (1, 2)), budget=Budget(pcost=0.01))
)
FILE, PAYER, CONFIRM = "2. File", "3. Who pays", "4. Confirm"  # steps of the page
FIRST_GROUP = 0  # the page shows this group first


@dataclass(kw_only=True)
class Person:
    """A user with records, ledger, browser, open page and all responses received."""

    name: str
    server: RunningServer
    folder: Path
    rows: int
    table: bytes
    page: Client
    received: list[bytes] = field(default_factory=list)
    addresses: set[str] = field(default_factory=set)
    answers: dict[str, list[bytes]] = field(default_factory=dict)

    @classmethod
    def arrive(
        cls, name: str, server: RunningServer, folder: Path, records: pd.DataFrame
    ) -> Person:
        """Write records and ledger, open the Release page, and return the person."""
        rows = len(records)
        frame = records.assign(remark=[f"canary{name}q{i}" for i in range(rows)])
        frame["c"] = frame["c"].astype(str)
        frame.loc[:4, "c"] = [f"canary{name}qvalue{i}" for i in range(5)]
        table = frame.to_csv(index=False).encode()
        (folder / f"canary{name}q.csv").write_bytes(table)
        book = Ledger.create(folder / f"canary{name}q.ledger")
        book.add_dataset(f"canary{name}qdataset", total=Budget(pcost=1e4))
        page = cls.opened(name, server, QUERY)
        return cls(name=name, server=server, folder=folder, rows=rows, table=table, page=page)

    @staticmethod
    def opened(name: str, server: RunningServer, query: str) -> Client:
        """Open a session in the browser of this person."""
        return open_client(
            server, "release", query, cookie=f"{server.cookie}; workbench-browser=browser-{name}"
        )

    @property
    def book(self) -> Ledger:
        """Return the ledger of this person."""
        return Ledger(self.folder / f"canary{self.name}q.ledger")

    @property
    def marks(self) -> list[bytes]:
        """Return private byte strings: a name, the number of rows, and released answers.

        Answers have the form in which the server sends them.
        """
        for row in self.book.rows():
            if row.kind == "saved" and row.key not in self.answers:
                answers = (
                    load_measurement(self.book, row.key).answers(FIRST_GROUP)["answer"].to_numpy()
                )
                # Omit the lowest 16 bits of the numbers, which depend on the order of summation.
                self.answers[row.key] = [
                    np.float64(value).tobytes()[2:] for value in answers if value % 1
                ]
        names = [f"canary{self.name}q".encode(), f"Rows read {self.rows:,} ".encode()]
        return names + [value for values in self.answers.values() for value in values]

    def collect(self) -> None:
        """Collect the responses since the last call."""
        self.received += self.page.received
        self.page.received.clear()
        self.addresses.add(self.page.query)

    def prepare(self) -> Client:
        """Fill in the page up to the confirmation of a release."""
        if self.page.page != "release":
            self.page.go("release")
        if self.page.has("release_leave_0"):
            self.page.press("release_leave_0")
        mark = f"canary{self.name}q"
        self.page.set("step", string_value=FILE)
        if self.page.has("records_how"):
            self.page.set("records_how", string_value="File on the server")
            self.page.set("records_path", string_value=str(self.folder / f"{mark}.csv"))
        self.page.set("step", string_value=PAYER)
        self.page.set("ledger_path", string_value=str(self.folder / f"{mark}.ledger"))
        self.page.set("dataset", string_value=f"{mark}dataset")
        return self.page.set("step", string_value=CONFIRM)

    def release(self) -> None:
        """Release; confirm the repetition if there was a release before."""
        page, spent = self.prepare(), len(self.book.rows())
        again = [name for name in self.page.drawn_ids if "-again_" in name]
        if again:
            page.states[again[0]] = {"bool_value": True}
            page.run()
        page.set("confirmation", string_value=f"canary{self.name}qdataset").press("release")
        page.until("Released for")
        assert len(self.book.rows()) == spent + 2
        # the releasing person must receive the marks, or the search would detect nothing
        marks, received = self.marks, b"".join([*self.received, *page.received])
        assert all(mark in received for mark in marks[2:][-2:]), (
            "the answers were sent in another form"
        )
        assert marks[0] in received

    def check(self) -> None:
        """Check the records, which shows exact numbers to this session only."""
        page = self.prepare()
        again = [name for name in page.drawn_ids if "-again_" in name]
        if again:
            page.states[again[0]] = {"bool_value": True}
            page.run()
        page.press("check_records").until("Rows read")

    def send(self) -> None:
        """Send the records as an upload, and leave the page."""
        self.prepare().set("step", string_value=FILE)
        upload(self.server, self.page, self.table)
        self.page.run().go("preview")

    def browse(self) -> None:
        """View the answers."""
        page = self.prepare()
        if page.has("open_result"):
            page.press("open_result").until("Released for")
        if any("release_result_view" in name for name in page.drawn_ids):
            page.set("release_result_view", string_value="Download").set(
                "release_result_view", string_value="Answers"
            )

    def rehearse(self) -> None:
        """Rehearse on simulated records."""
        self.prepare().set("step", string_value="1. Rehearse").press("rehearse").until(
            "REHEARSAL on"
        )

    def wander(self) -> None:
        """Visit the other pages."""
        for page in ("coarse", "preview", "release"):
            self.page.go(page)

    def reload(self) -> None:
        """Load the page again."""
        self.collect()
        query = self.page.query
        self.page.close()
        self.page = self.opened(self.name, self.server, query)

    def follow(self, other: Person) -> None:
        """Open the current address of the other person."""
        page = self.opened(self.name, self.server, other.page.query)
        self.received += page.received
        page.close()


def find_leaks(
    people: tuple[Person, Person],
    server: RunningServer,
    places: list[Path],
    *,
    at_end: bool = False,
) -> Iterator[str]:
    """Yield a sentence for each private value that is where it must not be.

    The responses to each person since the last call must not contain a mark of the other person;
    addresses, the log, command lines and files below ``places`` must not contain names or values.
    Folders of working copies, which only their user can read, are searched only if ``at_end``.
    """
    for person, other in (people, people[::-1]):
        person.collect()
        received, person.received = b"".join(person.received), []
        yield from (f"{person.name} received {mark!r}" for mark in other.marks if mark in received)
        yield from (
            f"an address of {person.name} contains a name"
            for query in person.addresses
            if "canary" in query
        )
    lines = "".join(server.lines)
    if "canary" in lines or "Traceback" in lines:
        yield "the log contains a name, a value or a traceback"
    for process in psutil.Process(server.process.pid).children(recursive=True):
        try:
            if any("canary" in word for word in process.cmdline()):
                yield "a command line contains a name"
        except psutil.Error:
            continue
    for place in places:
        yield from left_behind(place, at_end=at_end)


def left_behind(place: Path, *, at_end: bool) -> Iterator[str]:
    """Yield a sentence for each file below ``place`` that has a private value or a private name.

    Private working copies may contain them unless ``at_end``; private settings may contain names.
    """
    for file in place.rglob("*"):
        try:
            private = (
                file.parent.name.startswith("dp-workbench-")
                and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
            )
            content = file.read_bytes() if file.is_file() else b""
        except OSError:
            continue
        # The settings contain the names of opened ledgers.  Only the user of the server can read
        # them.
        allowed = (
            file.name == "places.json"
            and b"qvalue" not in content
            and not file.stat().st_mode & 0o077
        )
        if b"canary" in content and (at_end or not private) and not allowed:
            yield f"{file.name} holds values of records"
        if "canary" in file.name:
            yield f"the file name {file.name} contains a private name"


def campaign(
    server: RunningServer, folder: Path, places: list[Path], *, actions: int, rows: int, seed: int
) -> list[str]:
    """Let two people act in turn at random; return all leaks.

    The second person has the records of the first and one more, except for the values that contain
    a name.

    Parameters
    ----------
    folder : working directory of the server, which contains tables and ledgers.
    places : caches, settings and temporary files of the server.
    """
    rng, leaks = Random(seed), []
    records = synthetic(SCHEMA, rows + 1, seed=5)
    people = (
        Person.arrive("a", server, folder, records.head(rows)),
        Person.arrive("b", server, folder, records),
    )
    for number in range(actions):
        person, other = people if number % 2 == 0 else people[::-1]
        acts: list[Callable[[], None]] = [
            person.release,
            person.check,
            person.send,
            person.browse,
            person.rehearse,
        ]
        acts += [person.wander, person.reload, lambda me=person, them=other: me.follow(them)]
        # The first action of each person is a release.
        acts[rng.randrange(len(acts)) if number > 1 else 0]()
        leaks += find_leaks(people, server, places)
    for person in people:
        person.collect()
        person.page.close()
    return sorted(set(leaks))


def environment(folder: Path) -> tuple[dict[str, str], list[Path]]:
    """Create folders for caches, settings and temporary files; return (variables, folders).

    The variables are environment variables that make the server use these folders.
    """
    names = {
        "TMPDIR": "temporary",
        "DP_WORKBENCH_CACHE": "cache",
        "DP_WORKBENCH_SETTINGS": "settings",
    }
    places = [folder / name for name in names.values()]
    for place in places:
        os.makedirs(place, mode=0o700)
    return dict(zip(names, map(str, places), strict=True)), places
