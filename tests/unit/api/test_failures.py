"""What a launch that has failed is called."""

from __future__ import annotations

from launcher.api.ends import End
from launcher.api.failures import explained, launch_failed, task_failed
from launcher.api.talk import Said, Word
from launcher.errors import InputError, JobFailed


def test_remarks_and_output_are_no_failures():
    said = (
        "launch: job x: 1 worker on localhost\nlaunch: waiting for node1\nworker/0 | hello\n"
        "launch: --workdir: there is none\n  hint: make it\n"
    )
    error = launch_failed(125, said, "/run", {"job x: 1 worker on localhost", "waiting for node1"})
    assert isinstance(error, JobFailed)
    assert str(error) == "--workdir: there is none\n  hint: make it"
    assert str(launch_failed(125, "launch: waiting\n", "", {"waiting"})) == "launch ended with 125"
    assert isinstance(launch_failed(2, said, ""), InputError)


def test_an_end_in_the_words_of_what_was_raised():
    end = End("worker/0", code=1, failed=True)
    said = Said(Word.RAISED, {"what": "ValueError: no\nmore of it", "traceback": "", "code": 1})
    assert explained(end, said).text == "raised ValueError: no"
    assert explained(end, None) == end
    assert explained(end._replace(failed=False), said).text == "exited with code 1", "it was stopped"
    assert explained(end, said._replace(facts={"what": "SystemExit: 1"})) == end
    assert explained(end, Said(Word.DONE)) == end


def test_what_was_raised_is_told_once():
    facts = {"what": "LaunchError: no", "traceback": "LaunchError: no", "code": 1}
    error = task_failed(End("worker/0"), Said(Word.RAISED, facts), ["before", "LaunchError: no"], "/run")
    assert str(error).count("LaunchError: no") == 1 and "before" in str(error)
    facts["traceback"] = "Traceback (most recent call last):\n  somewhere\nLaunchError: no"
    error = task_failed(End("worker/0"), Said(Word.RAISED, facts), ["before"], "/run")
    assert "somewhere" in str(error)
