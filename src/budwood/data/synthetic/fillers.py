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
    "band": (
        "Their first drummer was {person}",
        "They met in {month} {year} in a cellar in {town}",
        "{organisation} printed the sleeve",
        "A concert in {town} was called off in {year}",
        "{person} drove the van",
        "No more than {number} copies were pressed",
    ),
    "region": (
        "Its flag was drawn by {person}",
        "The first railway reached {town} in {year}",
        "{organisation} prints its stamps",
        "Snow falls until {month}",
        "Of its {number} villages, {town} is the oldest",
        "{person} has made a map of it",
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
# Clauses before and after any sentence, and sentences around it, full of names that are not asked for.
OPENINGS = (
    "In {month} {year}, ",
    "As {person} wrote in {city} in {year}, ",
    "According to the {nationality} {profession} {person}, ",
    "According to {organisation} of {city}, ",
    "When {country} and {country} signed a treaty in {year}, ",
    "Before {person} came to {city} from {country}, ",
    "In the words of {person}, {post} of {city}, ",
)
CLOSINGS = (
    ", as {person} noted in {city}",
    ", while {person} went to {country} and {person} to {city}",
    " (see also {person}, {city} and {country})",
    "; the {nationality} edition of {year} adds {city}, {city} and {country}",
    ", like {person} of {city}, {country}",
    ", and {person}, {a_profession}, followed in {year}",
    ", says the {nationality} {profession} {person}",
)
AROUND = (
    "The {nationality} {profession} {person} (born {year} in {city}) lived in {country} until {month} {year}",
    "{person}, {a_profession} and {post}, wrote about it in {title} ({city}, {year})",
    "Guests came from {country}, {country}, {country} and {country}",
    "It was shown in {city}, {city} and {city}, and later in {country}",
    "{organisation} of {city}, {country}, paid for the journey of {person}",
    "{person} studied {science} in {city} and became {post} in {year}",
    "The prize went to {person} ({country}), {person} ({country}) and {person} ({country})",
    "{person} read {known_language}, {known_language} and {science} in {city}",
    "Its {trade} firms sold {goods} to {country} and {country}",
    "{title} was directed by {person}, {a_nationality} {film_genre} with {person} as {a_profession}",
    "In {city}, {person} played {sport} and the {instrument}",
    "The {music} of {person} was heard in {country}, and the {music} of {person} in {city}",
)
