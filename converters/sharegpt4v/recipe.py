"""ShareGPT4V: pictures with long captions by GPT-4 Vision and by a captioner trained on these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from streamshard.recipes import read_records

FILES = {
    "captions": "sharegpt4v_instruct_gpt4-vision_cap100k.json",
    "pretrain": "share-captioner_coco_lcs_sam_1246k_1107.json",
    "instruct": "sharegpt4v_mix665k_cap23k_coco-ap9k_lcs3k_sam9k_div2k.json",
}


@dataclass(frozen=True)
class ShareGpt4v:
    """``root`` holds the chat files and the folders that the pictures' paths start with.

    ``without`` leaves pictures out whose path starts with it, such as ``sam/``, which is large and asked for apart.
    """

    root: Path
    without: str = ""

    columns: ClassVar = {"id": "str", "image": "image", "conversations": "json"}
    splits: ClassVar = tuple(FILES)

    def tasks(self, split: str) -> list[Path]:
        return [self.root / FILES[split]]

    def samples(self, task: Path) -> Iterator[dict[str, Any]]:
        for record in read_records(task, columns=self.columns):
            image = record.get("image")
            if self.without and image is not None and image.startswith(self.without):
                continue
            yield {"id": str(record["id"]), "image": image, "conversations": record["conversations"]}
