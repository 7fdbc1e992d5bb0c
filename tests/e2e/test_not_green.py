"""What looks like success and is none. The host decides it, so one engine is enough."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.parametrize("project", ["bubblewrap"], indirect=True)

ASKS = """
try:
    ask("never recorded")
except BaseException:
    pass
"""


def indented(text, depth):
    return "".join(f"{' ' * depth}{line}\n" for line in text.strip().splitlines())


@pytest.mark.parametrize("way", ["os._exit(0)", "-p no:sealtape"])
def test_a_run_without_a_report_proves_nothing(project, way):
    body = way if way.startswith("os") else "pass"
    project.write("tests/test_it.py", f"import os\ndef test_it():\n    {body}\n")
    done = project.run("replay", *(way.split() if way.startswith("-") else []))
    assert done.returncode == 1
    assert "this run proves nothing" in done.stdout


def test_the_same_run_without_these_is_green(project):
    project.write("tests/test_it.py", "def test_it():\n    pass\n")
    assert project.run("replay").returncode == 0


def test_a_miss_in_a_forked_child_is_not_lost(project):
    head = "import os\nfrom shop import ask\ndef test_it():\n    if os.fork() == 0:\n"
    project.write("tests/test_it.py", f"{head}{indented(ASKS, 8)}        os._exit(0)\n    os.wait()\n")
    done = project.run("replay")
    assert done.returncode == 1, done.stdout
    assert "missed, and no test failed for it" in done.stdout
    assert "tests/test_it.py::test_it" in done.stdout


def test_a_miss_in_a_thread_that_outlives_the_tests_is_not_lost(project):
    code = f"import threading, time\nfrom shop import ask\ndef late():\n    time.sleep(0.5)\n{indented(ASKS, 4)}"
    project.write("tests/test_it.py", f"{code}def test_it():\n    threading.Thread(target=late).start()\n")
    done = project.run("replay")
    assert done.returncode == 1, done.stdout
    assert "missed, and no test failed for it" in done.stdout


def test_an_option_of_pytests_does_not_change_the_project(project):
    project.write("tests/test_it.py", f"from shop import ask\ndef test_it():\n{indented(ASKS, 4)}")
    done = project.run("replay", "--rootdir=/tmp")
    assert done.returncode == 1, done.stdout
    assert "missed 1" in done.stdout


def test_localhost_and_its_address_are_one_grant(project):
    code = f"from shop import ask\ndef test_it():\n{indented(ASKS, 4)}"
    code = code.replace('"never recorded"', '"never recorded", base_url="http://localhost:18765/v1"')
    project.write("tests/test_it.py", code)
    assert "missed 1" in project.run("replay").stdout


def test_a_server_that_nobody_granted_is_named(project):
    code = f"from shop import ask\ndef test_it():\n{indented(ASKS, 4)}"
    code = code.replace('"never recorded"', '"x", base_url="http://127.0.0.1:9/v1", client={"max_retries": 0}')
    project.write("tests/test_it.py", code.replace("max_retries=5, ", ""))
    project.write("tests/shop.py", (project.root / "tests/shop.py").read_text().replace("max_retries=5, ", ""))
    done = project.run("replay")
    assert "nobody listens at 127.0.0.1:9 in here" in done.stdout


def test_a_report_that_cannot_be_written_is_said_before_anything_runs(project):
    project.write("tests/test_it.py", "def test_it():\n    pass\n")
    done = project.run("replay", "--report", "tests")
    assert done.returncode == 64
    assert "passed" not in done.stdout
