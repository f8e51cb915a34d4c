"""The pages that guide a newcomer are true: everything on them is typed or run, in its order."""

import sys
from pathlib import Path

from delayd.testing.daemon import running_daemon
from tests.config_files import written
from tests.http_client import HTTP
from tests.pages import BLOCK, Reader, needs_curl, text_of
from tests.rigs.process import put_standing
from tests.servers import free_port


@needs_curl
def test_who_takes_the_tour_sees_what_it_says(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
        Reader(tmp_path, daemon).follow("tour.md", time_passes=True)


def test_every_recipe_does_what_it_says(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
        Reader(tmp_path, daemon).follow("recipes.md")


def test_groups_do_what_the_page_says(tmp_path: Path) -> None:
    texts = [
        block["text"] for block in BLOCK.finditer(text_of("groups.md")) if block["kind"] == "toml"
    ]
    home = tmp_path / "home"
    home.mkdir()
    with free_port() as port:
        settings = written(tmp_path, "".join(texts).replace("8080", str(port)))
        with running_daemon(*HTTP, "--config", settings, clock="virtual") as daemon:
            Reader(home, daemon, {"8080": str(port)}).follow("groups.md")


def test_an_upgrade_is_prepared_as_the_page_says(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    with running_daemon("--http", "127.0.0.1:0", data_dir=data) as daemon:
        put_standing(daemon, 3, b"waits")
        there = {"/var/lib/delayd": str(data), "/backup": str(tmp_path)}
        Reader(home, daemon, there).follow("sizing.md", "Upgrading")


def test_one_person_keeps_the_jobs_at_home(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        reader = Reader(tmp_path, daemon)
        reader.environment["HOME"] = str(tmp_path)
        reader.follow("operations.md", "For one person")


def test_the_program_of_the_page_on_testing_works(tmp_path: Path) -> None:
    program = text_of("testing.md").split("```python\n")[1].partition("```")[0]
    assert Reader(tmp_path).said(sys.executable, "-c", program) == "not yet\nreview order 4711\n"
