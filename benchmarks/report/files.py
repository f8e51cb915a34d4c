"""Where the report is: what is written by it, and what stands there already."""

from pathlib import Path
from typing import Final

from benchmarks.report.page import Results, pages_of
from benchmarks.report.parts import filled
from benchmarks.results import FOLDER, chapters

ROOT: Final = Path(__file__).parent.parent.parent
DOCS: Final = ROOT / "docs"
PICTURES: Final = DOCS / "benchmarks"
BY_HAND: Final = (
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in ("client", "sizing", "two-machines")),
)
"""Pages with figures between comments."""
THEMES: Final = ("light", "dark")


class Report:
    """All that is made of a folder of results; raises `DamagedResultsError`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        results: Results = dict(chapters(folder))
        pages = pages_of(results)
        self.plots = {
            PICTURES / f"{plot.name}-{theme}.svg": (plot, theme)
            for plot in pages.plots
            for theme in THEMES
        }
        """The plot and the theme of each picture."""
        self.texts = {DOCS / path: text for path, text in pages.texts.items()}
        """What each page says."""
        self.missing = [f"{name}: not measured" for name in pages.missing]
        """Chapters and figures without results."""
        for page in BY_HAND:
            self.texts[page], missing = filled(page.read_text(encoding="utf-8"), results)
            self.missing += (f"{page.name}: {words}" for words in missing)

    @property
    def stale(self) -> list[Path]:
        """Files of an earlier report that this one does not have."""
        known = {*self.texts, *self.plots}
        return sorted(path for path in PICTURES.glob("*") if path not in known)

    def outdated(self) -> list[Path]:
        """Return which files are not as this report would write them, without drawing."""
        texts = [path for path, text in self.texts.items() if not says(path, text)]
        pictures = [
            path
            for path, (plot, _) in self.plots.items()
            if not path.exists() or plot.fingerprint not in path.read_text(encoding="utf-8")
        ]
        return [*texts, *pictures, *self.stale]

    def write(self) -> None:
        """Write all pages and pictures, and remove those of an earlier report."""
        from benchmarks.report import drawing  # noqa: PLC0415 - only who draws needs matplotlib

        drawn = {path: drawing.draw(plot, theme) for path, (plot, theme) in self.plots.items()}
        PICTURES.mkdir(parents=True, exist_ok=True)
        for path, text in (drawn | self.texts).items():
            path.write_text(text, encoding="utf-8")
        for path in self.stale:
            path.unlink()


def says(path: Path, text: str) -> bool:
    """Whether a file has this text."""
    return path.exists() and path.read_text(encoding="utf-8") == text
