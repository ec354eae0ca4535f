"""The environment cache: what `setup:` made is kept in storage, and unpacked by the next VM.

What it must guarantee:

1. A VM has either exactly what `setup:` left on another one, or what its own `setup:` makes. What
   is kept is verified part by part (SHA-256) and appears in its place only when it is whole; with
   any doubt `setup:` runs, and an event says why.
2. Training comes first. Nothing is packed before the process runs, what packs has a low
   priority, a save interrupts it, and a notice ends it. No error of it is one of the job.
3. Half of it is never seen. Parts go into a folder of their own; then one conditional create of a
   manifest names them (as with the chain). Of two VMs one wins, and the other deletes its parts.

    tree.py     what lies in the folders after `setup:`, and as a list of items (pure but for stat)
    index.py    that list as bytes and back; what a foreign one may not say (pure)
    packing.py  a tree becomes parts
    manifest.py  what names the parts (pure)
    unpacking.py  parts become a tree, several at once
    key.py      under which name a result is looked for
    shelf.py    manifests and parts in the store
    keeping.py  finds, unpacks and keeps, beside an attempt

Why not tar: its stream is read and written by one thread, and a part that is damaged is found when
half of it is unpacked. Here each part says which files it holds, so they are fetched, verified and
written side by side.

Absolute paths: scripts of a venv name the folder that they were made for, and work nowhere else. So
the job's directory has one path on all VMs of a cloud (`AttemptPaths.share_work`), and what holds
that path (it is looked for while packing) is found only by VMs with the same one. Compiled Python
(`__pycache__`) does not count: the import puts the true path in (`_imp._fix_co_filename`).

What is not kept: owners (a file of another user's is a reason not to keep the tree), extended
attributes, and holes of sparse files that are smaller than a part.
"""
