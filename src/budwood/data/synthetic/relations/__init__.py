"""The relations of the invented facts: those with invented objects in the order of their subjects, then the others."""

from budwood.data.synthetic.relations.events import EVENTS
from budwood.data.synthetic.relations.lives import LIVES
from budwood.data.synthetic.relations.makings import MAKINGS
from budwood.data.synthetic.relations.nature import SPECIES
from budwood.data.synthetic.relations.organisations import ORGANISATIONS
from budwood.data.synthetic.relations.people import PEOPLE
from budwood.data.synthetic.relations.places import TOWNS
from budwood.data.synthetic.relations.products import PRODUCTS
from budwood.data.synthetic.relations.relation import Relation
from budwood.data.synthetic.relations.seats import SEATS
from budwood.data.synthetic.relations.things import VESSELS, WORKS

INVENTED = (*PEOPLE, *TOWNS, *ORGANISATIONS, *PRODUCTS, *WORKS, *VESSELS, *SPECIES, *EVENTS)
KNOWN = (*LIVES, *SEATS, *MAKINGS)  # their objects are of the real world
RELATIONS: tuple[Relation, ...] = (*INVENTED, *KNOWN)

__all__ = ["RELATIONS", "Relation"]
