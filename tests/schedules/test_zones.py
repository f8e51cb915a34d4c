import datetime as dt
import random
import re
import zoneinfo
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from zoneinfo._zoneinfo import (  # type: ignore[import-not-found]
    ZoneInfo as PythonZone,
)

import pytest

from delayd.fields import Field, Invalid
from delayd.limits import (
    WALL_MS_MAX,
    ZONE_CHARACTERS_MAX,
    ZONE_PROBE_S,
    ZONE_WINDOW_S,
    ZONE_WINDOWS_KEPT_MAX,
    ZONES_KEPT_MAX,
)
from delayd.schedules import zones
from delayd.schedules.zones import TIME_ZONE, ZONE_RULE, period_at, tzdata_version

NONE = "there is no such time zone"
REFUSED = {
    "": ZONE_RULE,
    "x" * (ZONE_CHARACTERS_MAX + 1): ZONE_RULE,
    "x" * ZONE_CHARACTERS_MAX: NONE,
    "Europe/Belin": f"{NONE}; did you mean Europe/Berlin?",
    "EUROPE/BERLIN": f"{NONE}; did you mean Europe/Berlin?",
    "Berlin": f"{NONE}; did you mean Europe/Berlin?",
    "utc": f"{NONE}; did you mean UTC?",
    "new york": f"{ZONE_RULE}; did you mean America/New_York?",
    "America": f"{NONE}; did you mean America/",
    "../../etc/passwd": ZONE_RULE,
    "Europe/Berlin\0": ZONE_RULE,
    "posix/Europe/Berlin": f"{ZONE_RULE}; did you mean Europe/Berlin?",
    "localtime": ZONE_RULE,
    "Factory": ZONE_RULE,
    "zone1970.tab": ZONE_RULE,
    "leapseconds": NONE,
    "+02:00": ZONE_RULE,
}


@pytest.mark.parametrize(("name", "rule"), REFUSED.items())
def test_a_wrong_zone_is_refused_with_a_near_one(name: str, rule: str) -> None:
    with pytest.raises(Invalid) as refusal:
        Field("timezone", "timezone", TIME_ZONE).read(name)
    said = refusal.value.errors[0].rule
    assert said.startswith(rule)
    assert said == rule or name not in zones._NO_ZONES


@pytest.mark.parametrize("value", [None, 5, ["UTC"]])
def test_what_is_no_text_is_no_zone(value: object) -> None:
    with pytest.raises(ValueError, match="must be the name of a time zone"):
        TIME_ZONE.read(value)


def test_every_zone_has_the_form_of_the_schema_and_can_be_read() -> None:
    form = re.compile(TIME_ZONE.schema["pattern"])
    names = zones._names()
    assert len(names) > 400
    assert all(form.search(name) and len(name) <= ZONE_CHARACTERS_MAX for name in names)
    for name in ("UTC", "Etc/GMT+12", "America/Port-au-Prince", "America/Argentina/Ushuaia"):
        assert TIME_ZONE.read(name) == name == TIME_ZONE.show(name)


# --- Periods ---

SAMPLE = ("Africa/Monrovia", "America/Noronha", "Asia/Gaza", "Australia/Lord_Howe")
Change = tuple[int, int, int]


def changes(name: str, end_s: int) -> Iterator[Change]:
    """When a clock is set, as periods say: the moment, the offset before and after."""
    at_s = 0
    while at_s < end_s:
        period = period_at(name, at_s)
        assert period.begin_s <= at_s < period.end_s
        if period.before_s != period.offset_s and 0 < period.begin_s < end_s:
            yield period.begin_s, period.before_s, period.offset_s
        at_s = period.end_s


def changes_of_the_database(name: str, end_s: int) -> Iterator[Change]:
    zone = PythonZone.no_cache(name)
    offset = int(zone._tti_before.utcoff.total_seconds())
    for at_s, after in zip(zone._trans_utc, zone._ttinfos, strict=True):
        after_s = int(after.utcoff.total_seconds())
        if offset != after_s and 0 < at_s < end_s:
            yield at_s, offset, after_s
        offset = after_s


@pytest.mark.walk(4, 64)
def test_periods_begin_where_the_database_has_changes(number: int) -> None:
    """Of all zones, in the long form; and none has two within the time between two looks."""
    end_s = int(dt.datetime(2037, 1, 1, tzinfo=dt.UTC).timestamp())
    known = sorted(zoneinfo.available_timezones() - {*zones._NO_ZONES})
    names = known[number - 4 :: 60] if number > 3 else ()
    for name in names or (SAMPLE[number],):
        expected = [*changes_of_the_database(name, end_s)]
        assert [*changes(name, end_s)] == expected, name
        moments = [moment for moment, _, _ in expected]
        between = [after - before for before, after in pairwise(moments)]
        assert min(between, default=ZONE_WINDOW_S) > 2 * ZONE_PROBE_S, name


def test_a_period_has_the_offset_of_any_moment_in_it(rng: random.Random) -> None:
    for name in (*SAMPLE, "UTC", "Asia/Kolkata", "Africa/Casablanca"):
        for _ in range(20):
            at_s = rng.randrange(WALL_MS_MAX // 1_000 - 2 * 86_400)
            shown = dt.datetime.fromtimestamp(at_s, zoneinfo.ZoneInfo(name)).utcoffset()
            period = period_at(name, at_s)
            assert shown is not None
            assert (period.offset_s, period.begin_s <= at_s < period.end_s) == (
                *(shown.total_seconds(), True),
            )


class Spring(dt.tzinfo):
    """A clock that skips an hour once, at a second of UTC."""

    def __init__(self, change_s: int) -> None:
        self._change = dt.datetime.fromtimestamp(change_s, dt.UTC).replace(tzinfo=None)

    def utcoffset(self, shown: dt.datetime | None) -> dt.timedelta | None:
        is_after = shown and shown.replace(tzinfo=None) > self._change
        return None if shown is None else dt.timedelta(hours=1 if is_after else 0)

    def tzname(self, _: dt.datetime | None) -> None:
        return None

    dst = utcoffset  # of which nobody asks

    def fromutc(self, at: dt.datetime) -> dt.datetime:
        is_after = at.replace(tzinfo=None) >= self._change
        return at + dt.timedelta(hours=1) if is_after else at


@pytest.mark.parametrize("at_s", [-1, 0, 1, ZONE_PROBE_S - 1, ZONE_PROBE_S, ZONE_WINDOW_S - 1])
def test_a_change_at_any_second_of_a_window_is_found(
    at_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_s = 9 * ZONE_WINDOW_S + at_s
    clock = Spring(change_s)
    monkeypatch.setattr(zones, "zone_named", lambda _: clock)
    assert [*changes(f"spring {at_s}", 11 * ZONE_WINDOW_S)] == [(change_s, 0, 3_600)]


def test_what_is_remembered_of_zones_has_a_bound() -> None:
    for window in range(ZONE_WINDOWS_KEPT_MAX + 10):
        period_at("Asia/Gaza", window * ZONE_WINDOW_S)
    assert zones._periods.cache_info().currsize == ZONE_WINDOWS_KEPT_MAX
    for name in zones._names()[: ZONES_KEPT_MAX + 10]:
        zones.zone_named(name)
    assert zones.zone_named.cache_info().currsize == ZONES_KEPT_MAX


# --- The version of the database ---


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Path]]:
    """Two folders in which zoneinfo looks for zones."""
    made = [tmp_path / "first", tmp_path / "second"]
    for folder in made:
        folder.mkdir()
    zoneinfo.reset_tzpath(to=[str(folder) for folder in made])
    yield made
    zoneinfo.reset_tzpath()


def test_the_version_is_that_of_the_first_database_on_the_path(folders: list[Path]) -> None:
    import tzdata  # type: ignore[import-untyped]

    assert tzdata_version() == tzdata.IANA_VERSION  # what zoneinfo falls back to
    assert zoneinfo.ZoneInfo.no_cache("Europe/Berlin").key == "Europe/Berlin"
    first, second = folders
    (second / "+VERSION").write_text("2024b\n")
    assert tzdata_version() == "2024b"
    (second / "tzdata.zi").write_text("# version 2025a\n# This zic input file is public.\n" * 9_000)
    assert tzdata_version() == "2025a"
    (first / "UTC").write_text("a zone, and no word of the version")
    assert tzdata_version() == "unknown"
    for text in ("# no version\n", "# version \n", "", "# version " + "x" * 40 + "\n"):
        (first / "tzdata.zi").write_text(text)
        assert tzdata_version() == "unknown"
    (first / "tzdata.zi").write_text("# version 2026c-custom.1\n")
    assert tzdata_version() == "2026c-custom.1"


def test_the_version_of_the_systems_database_is_known() -> None:
    assert re.fullmatch(r"20\d\d[a-z]+", tzdata_version())
