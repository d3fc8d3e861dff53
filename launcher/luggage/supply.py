"""What one host asks for, given to it over as many connections as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from launcher.errors import ConnectionLost
from launcher.luggage.manifests import Manifests
from launcher.luggage.meter import Meter, VisitCount
from launcher.luggage.parcels import Parcels
from launcher.luggage.talk import Conversation
from launcher.luggage.walk import Tree
from launcher.model.luggage import LuggageError, unspell


class Visit(NamedTuple):
    """What came of one host."""

    #: Where each folder is.
    paths: Sequence[str]
    sent: int
    #: Files that were others when they were sent; if there are any, nothing was put in place.
    changed: Sequence[str] = ()


class Supply:
    """Gives one host what it asks for, over as many connections as it takes."""

    def __init__(self, trees: Sequence[Tree], manifests: Manifests, parcels: Parcels, meter: Meter) -> None:
        self._trees = trees
        self._manifests = manifests
        self._parcels = parcels
        self._visit_count = VisitCount(meter)
        #: Over connections that broke.
        self._sent = 0
        #: Which tree was asked for last, and how little of it: what the host has it does not ask for again.
        self.gained = (-1, 0)

    def serve(self, talk: Conversation) -> Visit:
        """Until it has all."""
        try:
            while True:
                said = talk.answer()
                if "done" in said:
                    return Visit(said["done"], self._sent + talk.sent)
                if "bad" in said:
                    return Visit((), self._sent + talk.sent, said["bad"])
                try:
                    self._give(talk, said)
                except (LuggageError, KeyError, IndexError, TypeError, ValueError) as error:
                    raise talk.broken(error) from error
        except ConnectionLost:
            self._sent += talk.sent
            raise
        finally:
            self._visit_count.drop()

    def _give(self, talk: Conversation, said: dict[str, Any]) -> None:
        if said["need"] == "manifests":
            for number, each, signature in said["of"]:
                for frame in self._manifests.frames(number, each, signature):
                    talk.send(frame)
            return
        entries = self._trees[said["tree"]].entries
        which = unspell(said["which"], len(entries))
        size = sum(entries[index].size for index in which)
        self.gained = (int(said["tree"]), -size)
        self._visit_count.expect(size)
        for parcel in self._parcels.contents(said["tree"], which, bool(said["squeeze"])):
            talk.send(parcel.frame)
            self._visit_count.move(parcel.size)
