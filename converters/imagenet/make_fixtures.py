"""Make ``fixtures/``: drawn pictures of two classes, laid out in both ways that ImageNet is.

One of them is a PNG file named ``.JPEG``, as one of ImageNet is.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent / "fixtures"
TRAIN = (("n01440764", "n01440764_18"), ("n01443537", "n01443537_2"), ("n01443537", "n01443537_10"))
VAL = (("n01443537", "ILSVRC2012_val_00000001"), ("n01440764", "ILSVRC2012_val_00000002"))


def draw(path: Path, kind: str = "JPEG") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 9), (len(path.stem) * 7, 0, 0)).save(path, kind)


def main() -> None:
    for layout in ("folders", "listed"):
        for synset, name in TRAIN:
            draw(ROOT / layout / "train" / synset / f"{name}.JPEG", "PNG" if name.endswith("_10") else "JPEG")
        for synset, name in VAL:
            folder = synset if layout == "folders" else "."
            draw(ROOT / layout / "val" / folder / f"{name}.JPEG")
    rows = [f"{name},{synset} 1 2 3 4 \n" for synset, name in reversed(VAL)]
    (ROOT / "listed" / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(rows))


if __name__ == "__main__":
    main()
