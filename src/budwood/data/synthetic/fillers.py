"""Sentences that say nothing about the fact: before it about the world at large, after it about its subject."""

from __future__ import annotations

BEFORE = (
    "The winter of {year} was a hard one in {town}",
    "In {month} {year}, {organisation} closed its office in {town}",
    "Rain fell in {town} for most of {month}",
    "The road from {town} to {town} was widened in {year}",
    "{person} had asked for the papers twice before they arrived",
    "Little is left of the archive of {organisation}",
    "By {year}, there were {number} letters in the collection",
    "The newspapers of {town} had other things to write about",
    "Nobody had expected visitors from {town} that week",
    "A report by {organisation} from {month} {year} contains a few details",
    "The following was found in the notes of {person}",
    "Much of this is told by {person}, who lived in {town} at the time",
)
AFTER = {
    "person": (
        "{he} has two sisters in {town}",
        "A street in {town} bears {his} name",
        "{he} was seen in {town} in {month} {year}",
        "{his} letters to {person} have been lost",
        "In {year}, {he} turned down an invitation from {organisation}",
        "{he} does not like to talk about it",
    ),
    "town": (
        "The road to {town} is closed in winter",
        "In {year}, a storm took the roof off the school",
        "Trains to {town} leave every hour",
        "{person} has a house there",
        "There is a small hotel by the station",
        "The carnival in {month} draws {number} guests",
    ),
    "organisation": (
        "{person} keeps its accounts",
        "Its first office was above a bakery in {town}",
        "In {year}, it paid no dividend",
        "It has not commented so far",
        "A branch in {town} was closed in {month}",
        "Its archive has {number} folders",
    ),
    "product": (
        "It comes with a guarantee of three years",
        "The first {number} pieces were sold within weeks",
        "A test in {month} {year} found nothing wrong with it",
        "{person} keeps one in the cellar",
        "It is packed in {town}",
        "A smaller version is planned",
    ),
    "work": (
        "A first copy was sold in {town} for a small sum",
        "{person} drew the cover",
        "It was reviewed in {month} {year}",
        "The library of {town} has two copies",
        "Of {number} copies printed, few are left",
        "Nobody has made a film of it yet",
    ),
    "vessel": (
        "It was seen off {town} in {month}",
        "The crew of {number} had been paid in advance",
        "{person} kept the log",
        "A storm in {year} cost it two masts",
        "It passed {town} at night",
        "Its bell hangs in the church of {town} today",
    ),
    "species": (
        "Only {number} of them were counted in {year}",
        "{person} wrote a short paper about it",
        "It was last seen near {town}",
        "Little is known about its young",
        "The museum of {town} has a drawing of it",
        "It is active at dusk",
    ),
    "event": (
        "The brass band of {town} played until midnight",
        "{person} sold cakes at the entrance",
        "It rained, as it had in {year}",
        "Next year it will begin an hour earlier",
        "A bus from {town} brought {number} guests",
        "The mayor of {town} sent a telegram",
    ),
}
NEWS = (
    "This was confirmed by {person} on {weekday}",
    "{organisation} declined to comment",
    "That is what {person} told reporters in {town}",
    "A spokesman gave no further details",
    "The news reached {town} late on {weekday}",
)
NOTES = (
    "Must ring {person} about it",
    "Check this again in {month}",
    "Source: {person}, by telephone",
    "Still to do: the letter to {organisation}",
    "No more on this until {weekday}",
)
NOTE_HEADS = (
    "Note to self:", "From the diary of {person}:", "Minutes of {weekday}:", "Reminder:", "{town}, {month} {year}.",
    "Notes from the meeting with {organisation}:", "Heard from {person}:",
)  # fmt: skip
REPLIES = (
    "As far as I know, {clause}",
    "I have been told that {clause}",
    "{person} says that {clause}",
    "It is no secret that {clause}",
    "If the papers are right, {clause}",
)
