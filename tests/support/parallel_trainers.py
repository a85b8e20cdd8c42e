"""What ranks do that read in tensor- and context-parallel groups; run by ``tests.support.ranks`` as the others."""

from __future__ import annotations

import json
from typing import Any

from tests.support.loading import make_loader, numbers_of


def read_on_meshes(rank: int, options: dict[str, Any]) -> None:
    """Read an epoch with each loader of ``ways`` on each mesh, and log what this rank got.

    Options:
        dataset: arguments of ``StreamingDataset``.
        meshes: for each, ``shape``, ``names`` of its dimensions, and which of them are data parallel (``dp``).
        ways: arguments of ``make_loader``.
        log: each rank writes ``{log}.{rank}``.
    """
    from torch.distributed.device_mesh import init_device_mesh

    from streamshard import StreamingDataset

    with open(f"{options['log']}.{rank}", "w") as log:
        for number, mesh in enumerate(options["meshes"]):
            device_mesh = init_device_mesh("cpu", tuple(mesh["shape"]), mesh_dim_names=tuple(mesh["names"]))
            names = mesh["dp"]
            part = device_mesh[names[0]] if len(names) == 1 else device_mesh[tuple(names)]
            for way in options["ways"]:
                dataset = StreamingDataset(**options["dataset"], world=part)
                loader = make_loader(dataset=dataset, **way)
                world = dataset.world
                line = {
                    "mesh": number,
                    "world": None
                    if world is None
                    else [world.rank, world.world_size, world.local_world_size],
                    "batches": [numbers_of(batch) for batch in loader],
                }
                log.write(json.dumps(line) + "\n")


def refuse_meshes(rank: int, options: dict[str, Any]) -> None:
    """Write down what is said to a process outside of a mesh, and to one that gives a mesh and a replication."""
    from torch.distributed.device_mesh import DeviceMesh

    from streamshard import StreamingDataset
    from streamshard.errors import TopologyError

    said = []
    for arguments in ({"world": DeviceMesh("cpu", [0], mesh_dim_names=("dp",))}, {"replication": 2}):
        mesh = DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("dp", "tp"))["dp"]
        try:
            dataset = StreamingDataset(**{**options["dataset"], "world": mesh, **arguments})
            said.append(repr(dataset.world))
        except TopologyError as error:
            said.append(str(error))
    with open(f"{options['log']}.{rank}", "w") as log:
        log.writelines(json.dumps({"said": text}) + "\n" for text in said)


def _children() -> int:
    import psutil

    return len(psutil.Process().children())


def _taken(loader: Any, most: int | None = None) -> dict[str, Any]:
    """Iterate, and describe all that a trainer can see on the way."""
    seen: dict[str, Any] = {"steps": [], "length": len(loader)}
    for batch in loader:
        seen["steps"].append(
            [
                numbers_of(batch),
                loader.last_batch_padding,
                loader.state_dict(),
                len(loader),
                loader.dataset.epoch,
            ]
        )
        if len(seen["steps"]) == most:
            break
    seen["after"] = [loader.state_dict(), len(loader), loader.dataset.next_epoch]
    return seen


def _story(loader: Any) -> list[dict[str, Any]]:
    """Whole and broken-off epochs, a resume, a stop."""
    told = [_taken(loader), _taken(loader, 3)]
    state = loader.state_dict()
    told += [_taken(loader), _taken(loader, 1)]
    loader.load_state_dict(state)
    told.append(_taken(loader))
    iterator = iter(loader)
    next(iterator)
    loader.dataset.stop()
    told.append({"rest": [numbers_of(batch) for batch in iterator], "state": loader.state_dict()})
    told.append(_taken(loader, 2))
    loader.dataset.set_epoch(7)
    told.append(_taken(loader))
    return told


def read_once_and_apart(rank: int, options: dict[str, Any]) -> None:
    """Tell the same story with a loader that reads for itself and with those of ``ways`` that share one reader.

    Options:
        dataset: arguments of ``StreamingDataset``.
        shape: of the mesh (dp, tp).
        ways: arguments of ``make_loader``.
        log: each rank writes ``{log}.{rank}``: first what it saw apart, then what it saw in each way.
    """
    from torch.distributed.device_mesh import init_device_mesh

    from streamshard import StreamingDataset

    mesh = init_device_mesh("cpu", tuple(options["shape"]), mesh_dim_names=("dp", "tp"))
    group = mesh["tp"].get_group()
    with open(f"{options['log']}.{rank}", "w") as log:
        for way in ({"kind": "streaming", "batch_size": 4}, *options["ways"]):
            calls: list[int] = []

            def count(sample: Any, calls: list[int] = calls) -> Any:
                calls.append(1)
                return sample

            dataset = StreamingDataset(**options["dataset"], world=mesh["dp"], transform=count)
            together = {} if way == {"kind": "streaming", "batch_size": 4} else {"read_once": group}
            loader = make_loader(dataset=dataset, **{**way, **together})
            told = _story(loader)
            iterator = iter(loader)
            next(iterator)
            log.write(json.dumps({"told": told, "reads": bool(calls), "children": _children()}) + "\n")
            dataset.stop()
            del iterator, loader


class OwnError(Exception):
    """An error of a user's own, which pickle can take."""


class TwoPartError(Exception):
    """An error that pickle cannot make anew."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def _spoil(kind: str) -> Any:
    def transform(sample: Any) -> Any:
        if sample["number"] == 9:
            if kind == "own":
                raise OwnError("number 9 is wrong")
            if kind == "two parts":
                raise TwoPartError("this", "that")
            if kind == "unpicklable":
                return {**sample, "text": lambda: None}
        return sample

    return transform


def fail_together(rank: int, options: dict[str, Any]) -> None:
    """Read until the reader fails, with each of ``ways``; log the error and what a new iterator gives.

    Options: as above, and for each way ``spoil``, or a dataset of its own in ``dataset``.
    """
    import torch.distributed as dist

    from streamshard import StreamingDataset, World

    with open(f"{options['log']}.{rank}", "w") as log:
        for way in options["ways"]:
            way = dict(way)
            arguments = {**options["dataset"], **way.pop("dataset", {})}
            dataset = StreamingDataset(**arguments, world=World(0, 1), transform=_spoil(way.pop("spoil", "")))
            loader = make_loader(dataset=dataset, read_once=dist.group.WORLD, **way)
            iterator, batches = iter(loader), 0
            line: dict[str, Any] = {}
            try:
                for _ in iterator:
                    batches += 1
            except Exception as error:
                line = {"kind": type(error).__name__, "text": str(error), "cause": str(error.__cause__)}
            line.update(batches=batches, state=loader.state_dict())
            try:
                next(iterator)
            except Exception as error:
                line["again"] = str(error)
            dataset.set_epoch(3)
            line["fresh"] = numbers_of(next(iter(loader)))
            log.write(json.dumps(line) + "\n")


def lose_each_other(rank: int, options: dict[str, Any]) -> None:
    """Let the two members differ in every way; log what each is told and how it goes on."""
    import torch.distributed as dist

    from streamshard import StreamingDataLoader, StreamingDataset, World

    def make(world: World | None = None, batch_size: int = 4, workers: int = 0, **arguments: Any) -> Any:
        dataset = StreamingDataset(**{**options["dataset"], **arguments}, world=world or World(0, 1))
        return StreamingDataLoader(dataset, batch_size, num_workers=workers, read_once=dist.group.WORLD)

    def other_ranks() -> None:
        iter(make(world=World(rank, 2), workers=1))

    def other_sizes() -> None:
        iter(make(batch_size=4 + rank))

    def other_seeds() -> None:
        iter(make(shuffle_seed=rank))

    def other_epochs() -> None:
        loader = make()
        loader.dataset.set_epoch(rank)
        iter(loader)

    def other_places() -> None:
        loader = make()
        loader.load_state_dict(loader.dataset.state_at(2, 8 * rank))
        iter(loader)

    def another_call() -> None:
        loader = make()
        iterator = iter(loader)
        next(iterator)
        if rank:
            del iterator
            iter(loader)
        else:
            next(iterator)

    def a_second_iterator_in_one() -> None:
        loader = make()
        iterator = iter(loader)
        next(iterator)
        if rank == 0:
            del iterator
        iter(loader)

    def told_to_go_elsewhere_in_one() -> None:
        loader = make()
        iterator = iter(loader)
        next(iterator)
        if rank:
            loader.dataset.set_epoch(5)
        next(iterator)

    def stopped_in_one() -> None:
        loader = make(workers=1)
        iterator = iter(loader)
        next(iterator)
        if rank:
            loader.dataset.stop()
        rest = list(iterator)
        raise RuntimeError(f"{len(rest)} more, position {loader.state_dict()['position']}")

    def refused_and_mended() -> None:
        loader = make()
        loader.load_state_dict(loader.dataset.state_at(2, 8 * rank))
        try:
            iter(loader)
        except ValueError:
            where = loader.state_dict()
            loader.load_state_dict(loader.dataset.state_at(2, 8))
            numbers = numbers_of(next(iter(loader)))
            raise RuntimeError(f"{where['epoch']} {where['position'] == 8 * rank} {numbers}") from None

    def no_member() -> None:
        group = dist.new_group([0])
        StreamingDataLoader(StreamingDataset(**options["dataset"]), 4, read_once=group)
        raise RuntimeError("a member")

    with open(f"{options['log']}.{rank}", "w") as log:
        for case in (
            *(other_ranks, other_sizes, other_seeds, other_epochs, other_places, another_call),
            *(
                a_second_iterator_in_one,
                told_to_go_elsewhere_in_one,
                stopped_in_one,
                refused_and_mended,
                no_member,
            ),
        ):
            said = "nothing"
            try:
                case()
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            log.write(json.dumps({"case": case.__name__, "said": said, "children": _children()}) + "\n")
            log.flush()
