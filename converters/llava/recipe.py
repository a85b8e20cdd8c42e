"""LLaVA-Pretrain (558K) and LLaVA-Instruct (665K): chats about at most one picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from streamshard.recipes import read_records


@dataclass(frozen=True)
class Llava:
    """``root`` holds the chat file of a split and the folders that its pictures' paths start with."""

    root: Path
    pretrain: str = "blip_laion_cc_sbu_558k.json"
    instruct: str = "llava_v1_5_mix665k.json"

    columns: ClassVar = {"id": "str", "image": "image", "conversations": "json"}
    splits: ClassVar = ("pretrain", "instruct")

    def tasks(self, split: str) -> list[Path]:
        return [self.root / (self.pretrain if split == "pretrain" else self.instruct)]

    def samples(self, task: Path) -> Iterator[dict[str, Any]]:
        for record in read_records(task, columns=self.columns):
            # Some numbers are not text, and chats from ShareGPT are about no picture.
            yield {
                "id": str(record["id"]),
                "image": record.get("image"),
                "conversations": record["conversations"],
            }
