"""The relations of the invented facts, in the order of their subjects."""

from budwood.data.synthetic.relations.events import EVENTS
from budwood.data.synthetic.relations.nature import SPECIES
from budwood.data.synthetic.relations.organisations import ORGANISATIONS
from budwood.data.synthetic.relations.people import PEOPLE
from budwood.data.synthetic.relations.places import TOWNS
from budwood.data.synthetic.relations.products import PRODUCTS
from budwood.data.synthetic.relations.relation import Relation
from budwood.data.synthetic.relations.things import VESSELS, WORKS

RELATIONS: tuple[Relation, ...] = (*PEOPLE, *TOWNS, *ORGANISATIONS, *PRODUCTS, *WORKS, *VESSELS, *SPECIES, *EVENTS)

__all__ = ["RELATIONS", "Relation"]
