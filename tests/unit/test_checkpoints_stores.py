"""One chain, and data in several stores: what an entry names is read, kept and deleted there."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.checkpoints import (
    Candidate,
    Chain,
    Entry,
    FileRecord,
    Journal,
    Place,
    Stores,
    by_nearness,
    prune,
    restore,
    restore_from_job,
    upload,
)
from spothop.checkpoints import keys as layout
from spothop.storage import FolderStore, StorageError, StorageUnavailable, StorageUnsupported
from spothop.wire import SaveKind, StorageSpec, spec_at
from support.examples import examples

JOB = "j1"
HERE = Place(cloud="aws", region="eu-central-1")
MAIN, NEAR, OTHER = "main", "near", "other"


class Rooms:
    """Three folders: the first holds the chain."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.specs = [StorageSpec(url=(root / name).as_uri()) for name in (MAIN, NEAR, OTHER)]
        for name in (MAIN, NEAR, OTHER):
            (root / name).mkdir()
        self.store = FolderStore(root / MAIN)
        self.chain = Chain(self.store, JOB)
        self.stores = Stores(self.store, self.specs)

    def url(self, name: str) -> str:
        return "" if name == MAIN else (self.root / name).as_uri()

    def send(self, name: str, step: int, *, attempt: int = 1) -> list[FileRecord]:
        source = self.root / f"source-{step}"
        source.mkdir(exist_ok=True)
        (source / "w").write_text(str(step))
        (source / "empty").mkdir(exist_ok=True)
        kind, at = SaveKind.INSURANCE, self.stores.at(self.url(name))
        return upload(
            at, JOB, attempt, step, kind, source, upload_id=f"save-{step}", url=self.url(name)
        )

    def save(self, name: str, step: int, *, attempt: int = 1, parent: int | None = None) -> Entry:
        files = self.send(name, step, attempt=attempt)
        return self.chain.commit(
            attempt,
            step=step,
            kind=SaveKind.INSURANCE,
            files=files,
            root="c",
            is_dir=True,
            meta={},
            parent=parent,
        )

    def objects(self, name: str) -> list[str]:
        folder = self.root / name / "jobs" / JOB / "data"
        return sorted(path.parts[len(folder.parts)] for path in folder.rglob("w"))


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    found = Rooms(tmp_path)
    found.chain.fence(1)
    return found


def test_a_checkpoint_in_another_store_is_restored_from_there(rooms: Rooms, tmp_path: Path) -> None:
    entry = rooms.save(NEAR, 7)
    assert rooms.objects(MAIN) == []
    assert rooms.objects(NEAR) == ["7-1-insurance"]
    text = json.loads(entry.to_json())
    assert text["v"] == 3
    assert {file["path"]: file.get("url") for file in text["files"]} == {
        "empty/": None,
        "w": rooms.url(NEAR),
    }
    fresh = Stores(rooms.store, rooms.specs)
    found = restore(rooms.store, rooms.chain.newest_first(), tmp_path / "to", stores=fresh)
    assert found.step == 7
    assert (tmp_path / "to/c/w").read_text() == "7"


def test_a_store_that_was_taken_off_the_list_is_still_read(rooms: Rooms, tmp_path: Path) -> None:
    rooms.save(NEAR, 7)
    assert restore_from_job(rooms.specs[0], JOB, tmp_path / "to").step == 7


def test_a_store_that_does_not_answer_costs_no_steps(rooms: Rooms, tmp_path: Path) -> None:
    """The older checkpoint is at hand, and is not taken: an error of a store is no damage."""
    rooms.save(MAIN, 1)
    rooms.save(NEAR, 2)
    (tmp_path / NEAR).rename(tmp_path / "away")
    with pytest.raises(StorageUnavailable, match="near"):
        restore(rooms.store, rooms.chain.newest_first(), tmp_path / "to", stores=again(rooms))


def again(rooms: Rooms) -> Stores:
    return Stores(rooms.store, rooms.specs)


def test_data_goes_where_it_lies_and_the_newest_two_stay(rooms: Rooms) -> None:
    for step, name in enumerate((NEAR, MAIN, OTHER, NEAR, MAIN), 1):
        rooms.save(name, step)
    gone = prune(rooms.store, JOB, 0, chain=rooms.chain, stores=rooms.stores)
    assert [entry.step for entry in gone] == [1, 2, 3]
    assert (rooms.objects(MAIN), rooms.objects(NEAR), rooms.objects(OTHER)) == (
        ["5-1-insurance"],
        ["4-1-insurance"],
        [],
    )
    assert prune(rooms.store, JOB, 0, chain=rooms.chain, stores=rooms.stores) == []


def test_what_lies_in_a_store_that_is_away_stays_and_protects_nothing(
    rooms: Rooms, tmp_path: Path
) -> None:
    for step, name in enumerate((NEAR, MAIN, MAIN, NEAR, NEAR), 1):
        rooms.save(name, step)
    (tmp_path / NEAR).rename(tmp_path / "away")
    assert prune(rooms.store, JOB, 0, stores=again(rooms)) == []
    assert rooms.objects(MAIN) == ["2-1-insurance", "3-1-insurance"]
    (tmp_path / "away").rename(tmp_path / NEAR)
    prune(rooms.store, JOB, 0, stores=again(rooms))
    assert (rooms.objects(MAIN), rooms.objects(NEAR)) == ([], ["4-1-insurance", "5-1-insurance"])


def test_an_upload_without_an_entry_is_gone_when_the_next_attempt_has_saved(rooms: Rooms) -> None:
    """The agent died between the data in the near store and the entry in the first one."""
    rooms.save(NEAR, 1)
    rooms.send(NEAR, 2)
    assert [entry.n for entry in rooms.chain.entries()] == [1, 2]
    prune(rooms.store, JOB, 2, stores=rooms.stores)
    assert "2-1-insurance" in rooms.objects(NEAR), "this attempt may still commit it"
    rooms.chain.fence(2)
    rooms.save(MAIN, 3, attempt=2, parent=2)
    prune(rooms.store, JOB, 2, chain=rooms.chain, stores=rooms.stores)
    assert rooms.objects(NEAR) == ["1-1-insurance"]


def test_two_urls_of_one_place_lose_nothing(tmp_path: Path) -> None:
    """Nobody can tell of all names whether they mean the same place."""
    rooms = Rooms(tmp_path)
    (tmp_path / NEAR).rmdir()
    (tmp_path / NEAR).symlink_to(tmp_path / MAIN)
    rooms.chain.fence(1)
    rooms.save(NEAR, 1)
    rooms.chain.fence(2)
    rooms.save(NEAR, 2, attempt=2, parent=2)
    prune(rooms.store, JOB, 2, chain=rooms.chain, stores=rooms.stores)
    assert rooms.objects(MAIN) == ["1-1-insurance", "2-2-insurance"]


def test_what_a_newer_release_has_written_is_an_error_that_says_so(
    rooms: Rooms, tmp_path: Path
) -> None:
    """Taking the older checkpoint would cost steps, and nothing is damaged."""
    rooms.save(MAIN, 1)
    entry = rooms.save(NEAR, 2)
    file = tmp_path / MAIN / layout.chain_key(JOB, entry.n)
    file.write_text(json.dumps({**json.loads(file.read_text()), "v": 4}))
    with pytest.raises(StorageUnsupported, match=r"newer release .* update") as caught:
        restore_from_job(rooms.specs[0], JOB, tmp_path / "to")
    assert isinstance(caught.value, StorageError)


def test_an_entry_without_urls_is_what_an_earlier_release_reads(rooms: Rooms) -> None:
    entry = rooms.save(MAIN, 1)
    assert json.loads(entry.to_json())["v"] == 1
    assert "url" not in entry.to_json()
    assert Entry.from_json(entry.to_json()) == entry


def test_what_went_to_another_store_is_sent_again(tmp_path: Path) -> None:
    from spothop.checkpoints.journal import Seen

    seen, file = Seen(1, 2, 3), tmp_path / "journal"
    Journal(file, store="s3://near").add("key", seen, "abc")
    assert Journal(file).sent("key", seen) is None
    assert Journal(file, store="s3://near").sent("key", seen) == "abc"
    Journal(file).add("key", seen, "def")
    assert Journal(file).sent("key", seen) == "def"
    assert Journal(file, store="s3://near").sent("key", seen) == "abc"


def test_options_are_those_of_the_url_else_of_its_provider() -> None:
    first = StorageSpec(url="s3://a/x", options={"endpoint": "http://one"})
    second = StorageSpec(url="s3://b/x", options={"endpoint": "http://two"})
    assert spec_at([first, second], "s3://b/x") == second
    assert spec_at([first, second], "s3://c/y").options == first.options
    assert spec_at([first, second], "gs://c/y").options == {}


# --- the choice ---------------------------------------------------------------------------------

PLACES = st.builds(
    Place, cloud=st.sampled_from(["", "aws", "gcp"]), region=st.sampled_from(["", "eu", "us"])
)
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        url=st.uuids().map(lambda found: f"s3://{found}"),
        place=PLACES,
        upload_s=st.none() | st.sampled_from([0.1, 0.2, 3.0]),
        failing=st.booleans(),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda found: found.url,
)


def test_the_same_region_comes_first_then_the_quickest() -> None:
    found = by_nearness(
        HERE,
        [
            Candidate(url="s3://far", upload_s=0.9),
            Candidate(url="gs://quick", upload_s=0.1, place=Place(cloud="gcp", region="eu")),
            Candidate(url="s3://unknown"),
            Candidate(url="s3://here", upload_s=2.0, place=HERE),
        ],
    )
    assert [choice.url for choice in found] == [
        *("s3://here", "gs://quick", "s3://far", "s3://unknown")
    ]
    assert found[0].reason == "it lies in aws/eu-central-1, as this VM does"
    assert found[1].reason == "an upload of 1 MiB took 0.100 s"


@examples(100)
@given(PLACES, CANDIDATES)
def test_each_store_is_there_once_and_no_nearer_one_comes_later(
    here: Place, candidates: list[Candidate]
) -> None:
    by_url = {candidate.url: candidate for candidate in candidates}
    order = [by_url[choice.url] for choice in by_nearness(here, candidates)]
    assert sorted(order, key=candidates.index) == candidates
    for nearer, farther in pairwise(order):
        assert nearer.failing <= farther.failing
        if nearer.failing != farther.failing:
            continue
        assert nearer.place.is_at(here) >= farther.place.is_at(here)
        if nearer.place.is_at(here) != farther.place.is_at(here):
            continue
        if farther.upload_s is not None:
            assert nearer.upload_s is not None
            assert nearer.upload_s <= farther.upload_s
        if nearer.upload_s == farther.upload_s:
            assert candidates.index(nearer) < candidates.index(farther)


@examples(50)
@given(CANDIDATES)
def test_a_store_that_works_comes_before_one_that_failed(candidates: list[Candidate]) -> None:
    broken = dataclasses.replace(candidates[0], failing=True, place=HERE, upload_s=0.0)
    working = Candidate(url="s3://working")
    found = by_nearness(HERE, [broken, *candidates[1:], working])
    urls = [choice.url for choice in found]
    assert urls.index("s3://working") < urls.index(broken.url)


def test_an_unknown_place_is_nowhere() -> None:
    assert not Place().is_at(Place())
    assert not Place(cloud="aws").is_at(Place(cloud="aws"))
