"""The checkpoint chain in object storage (I1, I2) and everything that reads or writes it.

    keys.py      where things lie below `jobs/<job>/`, and how file names become keys
    entry.py     one chain entry and its JSON
    stores.py    `Stores`: the chain's own store, and those that hold data beside it
    near.py      which of them a save goes to (pure)
    chain.py     `Chain`: fence, commit, read
    parallel.py  progress; small transfers at once
    journal.py   what of an upload is durable, also over a restart of the agent
    upload.py    `upload`: a file or directory to data objects, before the commit
    restore.py   `restore`: the newest intact checkpoint back to its place
    ahead.py     a checkpoint that was fetched before it is needed
    prune.py     `to_prune` (pure) and `prune`
    staged.py    files of a data set that are on this machine already
    transfer.py  outputs, data sets and input checkpoints: whole trees without a chain

The protocol: data objects first, each durable; then one small conditional create of
`chain/<newest + 1>.json`. A checkpoint exists when that object does, and numbers never fork. Its
data may lie in another store than the chain, which the entry then names. An attempt's first entry
is its fence; nothing of an older attempt can follow it.
"""

from __future__ import annotations

from spothop.checkpoints.ahead import Ahead
from spothop.checkpoints.chain import Chain, ChainDamaged, Fenced, NotFencedIn, UnknownCommits
from spothop.checkpoints.entry import BadEntry, Entry, FileRecord, Outline
from spothop.checkpoints.journal import Journal
from spothop.checkpoints.near import Candidate, Choice, Place, by_nearness
from spothop.checkpoints.prune import prune, to_prune
from spothop.checkpoints.restore import Restored, restore
from spothop.checkpoints.staged import Staged
from spothop.checkpoints.stores import Stores
from spothop.checkpoints.transfer import (
    download_outputs,
    fetch_tree,
    restore_from_job,
    upload_outputs,
)
from spothop.checkpoints.upload import upload

__all__ = [
    "Ahead",
    "BadEntry",
    "Candidate",
    "Chain",
    "ChainDamaged",
    "Choice",
    "Entry",
    "Fenced",
    "FileRecord",
    "Journal",
    "NotFencedIn",
    "Outline",
    "Place",
    "Restored",
    "Staged",
    "Stores",
    "UnknownCommits",
    "by_nearness",
    "download_outputs",
    "fetch_tree",
    "prune",
    "restore",
    "restore_from_job",
    "to_prune",
    "upload",
    "upload_outputs",
]
