"""docs/sizing.md and docs/alerts.yaml speak of what there is: figures, metrics, labels."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]  # comes with openapi-spec-validator

from tests.test_documents import anchor_of
from tests.test_metrics import Page, busy_rig

REPORT: Final = "benchmarks.md"
"""Figures from there are written by `make report`, as tests/test_figures.py shows."""
DOCS: Final = Path(__file__).parent.parent / "docs"
TEXT: Final = (DOCS / "sizing.md").read_text(encoding="utf-8")
ROWS: Final = re.findall(r"^\| .+ \| (.+) \| \[\w+\]\(([^)#]+)#?([^)]*)\) \|$", TEXT, re.MULTILINE)
FIGURES: Final = [row for row in ROWS if row[1] != REPORT]
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"][
    0
]["rules"]
SELECTOR: Final = re.compile(r"\b((?:delayd|process)_\w+)(?:\{(\w+)=\"(\w+)\"\})?")


def test_there_are_figures_and_those_of_the_report_are_made_by_it() -> None:
    assert len(FIGURES) >= 5
    of_report = [figure for figure, page, _ in ROWS if page == REPORT]
    assert len(of_report) >= 5
    assert all(figure.startswith("<!-- report: ") for figure in of_report)


@pytest.mark.parametrize(("figure", "page", "anchor"), FIGURES)
def test_a_figure_stands_in_the_section_that_it_is_from(
    figure: str, page: str, anchor: str
) -> None:
    sections = re.split(
        r"^#+ (.*)\n", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    (said,) = (
        " ".join(text.split())
        for heading, text in zip(sections[1::2], sections[2::2], strict=True)
        if not anchor or anchor_of(heading) == anchor
    )
    assert re.search(rf"(?<![\d,]){re.escape(figure)}", said)


def test_the_sums_are_right() -> None:
    (own,) = map(int, re.findall(r"5,000,000 . \((\d+) \+ 400 \+ 90\)", TEXT))
    (mib,) = re.findall(r"<!-- report: memory -->([\d,]+)<!-- end --> MiB", TEXT)
    assert own + 100 == pytest.approx(int(mib.replace(",", "")) * 2**20 / 1e6, abs=12)
    memory, disk = 5_000_000 * (own + 400 + 90), 5_000_000 * ((400 + 92) * 2 + 136) + (256 << 20)
    assert f"= {memory / 1e9:.1f} GB" in TEXT
    assert f"= {disk / 1e9:.1f} GB" in TEXT


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_on_a_metric_that_exists_and_is_explained(rule: dict[str, Any]) -> None:
    assert f"| `{rule['alert']}` |" in TEXT
    # With refusals of other reasons: what an alert is on is there before it grows.
    samples = list(Page(busy_rig()).samples())
    for name, label, value in SELECTOR.findall(rule["expr"]):
        labels = [dict(pairs) for found, pairs in samples if found == name]
        assert any(not label or each.get(label) == value for each in labels), (name, value)
    assert SELECTOR.search(rule["expr"]) or rule["expr"].startswith("up{")


def test_runs_that_a_start_counts_as_lost_before_the_first_scrape_are_alerted_on() -> None:
    (rule,) = (rule["expr"] for rule in RULES if rule["alert"] == "DelaydRunsAreLost")
    for event in ("missed", "refused"):
        at_start = (
            f'or delayd_scheduled_runs_total{{event="{event}"}} > 0\n'
            "and on (job, instance) time() - process_start_time_seconds < 900\n"
        )
        assert at_start in rule


def test_every_explained_alert_is_a_rule() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == [rule["alert"] for rule in RULES]
