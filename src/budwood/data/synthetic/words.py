"""Common nouns by kind, our own lists; compounds of two lists make most of them rare."""

from __future__ import annotations


def nouns(text: str) -> tuple[str, ...]:
    """Split a list at its spaces; a hyphen stands for a space inside a noun."""
    return tuple(word.replace("-", " ") for word in text.split())


OCCUPATIONS = nouns(
    "accountant actuary archivist astronomer auctioneer baker bailiff barber beekeeper biologist blacksmith "
    "bookbinder botanist brewer bricklayer broker butcher cabinetmaker carpenter cartographer caterer chemist "
    "clockmaker cobbler conductor cooper curator decorator dentist dispatcher diver drummer economist editor "
    "electrician engraver ethnographer falconer farrier fencer ferryman fisher forester furrier gardener geologist "
    "glazier glassblower goldsmith grocer gunsmith haberdasher hatter herbalist historian illustrator inspector "
    "interpreter ironmonger janitor jeweller joiner journalist juggler lamplighter lecturer librarian linguist "
    "locksmith machinist magistrate mason mathematician mechanic merchant meteorologist midwife miller milliner "
    "miner navigator notary novelist nurse optician organist ornithologist painter paramedic perfumer pharmacist "
    "philosopher photographer physicist pilot planner plasterer plumber poet potter printer psychologist puppeteer "
    "radiologist ranger restorer roofer saddler sculptor seamstress shepherd shipwright signaller silversmith "
    "sociologist solicitor statistician stenographer stonecutter surgeon surveyor tailor tanner taxidermist "
    "thatcher toolmaker translator typesetter umpire upholsterer veterinarian vintner violinist watchmaker weaver "
    "welder wheelwright woodcarver zoologist"
)
CRAFTS = nouns("broker carver dealer engraver inspector merchant polisher restorer smelter turner")
FIELDS = nouns(
    "acoustics agronomy algebra anatomy archaeology astronomy bacteriology ballistics botany calligraphy "
    "cartography ceramics chemistry climatology cryptography cybernetics demography dentistry dermatology "
    "dialectology ecology economics embryology engineering entomology epidemiology ethics ethnography etymology "
    "folklore forestry genealogy genetics geodesy geology geometry glaciology heraldry histology horticulture "
    "hydraulics hydrology ichthyology immunology jurisprudence kinematics lexicography linguistics limnology logic "
    "mechanics metallurgy meteorology metrology mineralogy musicology mycology neurology numismatics nutrition "
    "obstetrics oceanography optics ornithology orthodontics palaeontology pathology pedagogy petrology "
    "pharmacology philology phonetics physiology poetics probability psychology robotics seismology semiotics "
    "sociology statistics surgery surveying taxonomy theology thermodynamics topology toxicology trigonometry "
    "typography virology viticulture zoology"
)
APPROACHES = nouns(
    "applied clinical coastal colonial comparative computational experimental historical marine medieval polar rural"
)
MATERIALS = nouns(
    "alabaster aluminium amber ash bamboo basalt beech birch bone brass brick bronze canvas cardboard cedar "
    "cherrywood chestnut clay concrete copper coral cork cotton ebony elm enamel felt fir flax flint glass granite "
    "graphite hemp horn iron ivory jade jute larch lead leather limestone linen mahogany maple marble mica nickel "
    "nylon oak obsidian onyx parchment pewter pine plaster plywood poplar porcelain quartz raffia rattan rosewood "
    "rubber sandstone satin silk silver slatestone spruce steel straw sycamore teak terracotta tin titanium "
    "travertine tweed velvet walnut wax wicker willow wool yew zinc"
)
ANIMALS = nouns(
    "adder albatross alpaca antelope badger bat bear beaver bison boar buzzard camel carp cat caterpillar chameleon "
    "cheetah cicada cobra cod cormorant crab crane cricket crow cuckoo deer dolphin donkey dove dragonfly duck "
    "eagle eel egret elk falcon ferret finch firefly flamingo fox frog gazelle gecko goat goose grouse gull hare "
    "hawk hedgehog heron herring hornet horse ibex iguana jackdaw jay kestrel kingfisher lark lemur leopard lizard "
    "llama lobster lynx magpie marten mole moose moth mouse mule newt nightingale octopus osprey otter owl oyster "
    "panther parrot partridge peacock pelican penguin pheasant pigeon pike porcupine puffin python quail rabbit "
    "raccoon ram raven reindeer robin salamander salmon scorpion seal shrew skunk sparrow squid squirrel starling "
    "stork swallow swan swift termite tern thrush tortoise toucan trout viper vole vulture walrus wasp weasel wolf "
    "woodpecker wren yak zebra"
)
INSTRUMENTS = nouns(
    "accordion bagpipe balalaika banjo bassoon bugle cello clarinet concertina cornet double-bass dulcimer "
    "euphonium fiddle flute flugelhorn glockenspiel guitar harmonica harp harpsichord horn kazoo lute lyre mandolin "
    "marimba oboe ocarina organ piano piccolo recorder saxophone sitar tambourine triangle trombone trumpet tuba "
    "ukulele vibraphone viola violin xylophone zither"
)
FOODS = nouns(
    "almonds anchovies apples apricots artichokes asparagus aubergines barley basil beans beetroot blackberries "
    "bread broccoli buckwheat butter cabbage capers cardamom carrots celery cheese cherries chestnuts chives cider "
    "cinnamon cloves cranberries cucumbers currants dates dill dumplings eggs elderflower fennel figs garlic ginger "
    "gooseberries grapes hazelnuts herring honey horseradish juniper kale kohlrabi leeks lemons lentils lettuce "
    "lovage marjoram marmalade melons millet mint mulberries mushrooms mussels mustard nettles nutmeg oats olives "
    "onions oranges oregano oysters pancakes parsley parsnips peaches pears peas peppers pickles plums pomegranates "
    "potatoes pumpkins quinces radishes raisins raspberries rhubarb rice rosemary rye saffron sage salt sausages "
    "sesame sorrel spinach strawberries tarragon tea thyme tomatoes trout truffles turnips vanilla vinegar walnuts "
    "watercress wheat yoghurt"
)
SPORTS = nouns(
    "archery athletics badminton bandy basketball biathlon billiards bobsleigh bowls boxing canoeing chess climbing "
    "cricket croquet curling cycling darts diving fencing gliding golf gymnastics handball hockey hurling judo "
    "kayaking korfball lacrosse luge netball orienteering polo rowing rugby sailing shooting skating skiing snooker "
    "softball squash sumo surfing swimming tennis trampolining volleyball weightlifting wrestling"
)
GENRES = nouns(
    "allegory ballad biography comedy documentary drama elegy epic essay fable fairy-tale farce ghost-story memoir "
    "melodrama musical mystery operetta parable parody pastoral polka romance saga satire  tango thriller tragedy "
    "travelogue waltz western"
)
COLOURS = nouns(
    "amber apricot azure beige black blue brown burgundy chestnut cobalt copper cream crimson emerald fawn gold "
    "green grey indigo ivory jade khaki lavender lemon lilac lime magenta maroon mauve navy ochre olive orange "
    "peach pink plum purple red russet rust saffron sapphire scarlet sepia silver slate tan teal turquoise "
    "ultramarine vermilion violet white yellow"
)
SHADES = ("pale", "dark", "bright", "deep", "dusty", "smoky")
HABITATS = nouns(
    "alder-swamps beech-woods bogs brackish-lagoons caves chalk-downs cliffs coral-reefs dunes estuaries fens "
    "gorges gravel-banks heaths hedgerows islets kelp-forests lava-fields limestone-pavements mangroves marshes "
    "meadows moors mudflats oak-woods orchards peat-cuttings pine-forests pools quarries reed-beds river-banks "
    "rock-ledges salt-marshes shingle-beaches streams thickets vineyards waterfalls wetlands"
)
DISHES = nouns(
    "barley-soup bean-stew beetroot-salad chestnut-cake cherry-pie cider-ham eel-soup fish-pie goose-pie honey-cake "
    "lamb-stew leek-tart lentil-soup mutton-broth nettle-soup nut-bread onion-tart pea-soup pear-tart "
    "pickled-herring pumpkin-bread rabbit-stew rye-bread salt-cod smoked-trout sour-cabbage spinach-pie turnip-stew "
    "walnut-cake"
)
INDUSTRIES = nouns(
    "barge-building bell-founding book-printing brewing brick-making button-making candle-making canning "
    "cheese-making clock-making coal-mining copper-smelting cotton-spinning dyeing fishing flax-growing "
    "fruit-canning furniture-making glass-blowing glove-making hop-growing insurance iron-casting lace-making "
    "lead-mining leather-tanning linen-weaving paper-making peat-cutting pottery quarrying rope-making salt-panning "
    "sheep-farming shipbreaking shipbuilding silk-weaving slate-quarrying-boiling sugar-refining timber-trading "
    "tin-plating tourism wine-growing wool-trading"
)
GOODS = nouns(
    "anchors axles bandages barometers bearings bells bicycles binoculars blankets boilers bricks brushes buttons "
    "cables candles carpets chains clocks compasses cranes drills elevators engines envelopes fans faucets filters "
    "furnaces gears gloves hammers harnesses hats headlamps helmets hinges hoses inks kettles knives ladders lamps "
    "lathes lenses locks looms magnets matches microscopes mirrors nails needles organs ovens pencils pianos pipes "
    "plates ploughs pumps radios rivets ropes saddles sails saws scales scissors screws shovels skates spectacles "
    "springs stoves suitcases switches telescopes tents thermometers tiles toys tractors turbines typewriters "
    "umbrellas valves violins wagons watches wheels whistles wires zips"
)
OFFICES = nouns(
    "alderman ambassador archdeacon bailiff bishop cantor chairman chancellor chaplain comptroller consul coroner "
    "dean deputy governor harbourmaster herald judge magistrate mayor minister notary ombudsman postmaster prefect "
    "president principal prior prosecutor provost rector registrar secretary senator sheriff speaker steward "
    "superintendent treasurer trustee verger viceroy warden"
)
RANKS = nouns(
    "admiral brigadier captain colonel commander commodore corporal ensign general lieutenant major midshipman "
    "quartermaster sergeant"
)
CROPS_AND_TREES = nouns(
    "alder apple ash aspen beech birch blackthorn cedar cherry chestnut cypress elder elm fig fir hawthorn hazel "
    "holly hornbeam juniper larch laurel lime maple mulberry oak olive pear pine plane plum poplar quince rowan "
    "spruce sycamore walnut willow yew"
)
FEATURES = nouns(
    "aqueduct arcade bandstand bell-tower belvedere bridge brewery cable-car canal cathedral citadel clock-tower "
    "colonnade dovecote drawbridge ferry fish-market fountain gatehouse granary grotto ice-house keep kiln "
    "labyrinth lighthouse lock maze mill monastery moat observatory obelisk orangery pagoda pier planetarium "
    "pump-house quay rose-garden sluice smithy sundial synagogue tannery tidal-mill vineyard viaduct water-tower "
    "weir windmill"
)
ILLNESSES = nouns(
    "anaemia asthma bronchitis cholera colic croup diphtheria dysentery eczema fever gout hives influenza jaundice "
    "lumbago malaria measles migraine mumps neuralgia palsy pleurisy pneumonia quinsy rheumatism rickets sciatica "
    "scurvy shingles sunstroke tonsillitis typhus vertigo"
)
HOBBIES = nouns(
    "beekeeping birdwatching bookbinding calligraphy carving embroidery falconry gardening genealogy "
    "hiking juggling kite-flying knitting lace-making marquetry metal-detecting origami painting "
    "photography pottery puppetry quilting sketching spinning stargazing stamp-collecting stone-skimming tatting "
    "topiary weaving whittling wood-turning yodelling"
)
ADJECTIVES = nouns(
    "amber bitter blind borrowed broken burning copper crooked distant drowned empty fading frozen gilded golden "
    "hidden hollow idle iron last lonely lost narrow northern paper patient quiet restless rusted salt scarlet "
    "second secret seventh silent silver sleeping stolen sunken tall thirsty unfinished velvet wandering weary "
    "white wooden"
)
THINGS = nouns(
    "anchor apprentice archive atlas avenue balcony bell bird bridge candle cartographer clock corridor crossing "
    "daughter door echo envelope ferry fiddler fountain garden gardener gate harbour hour house island key kingdom "
    "ladder lantern letter lighthouse map market meadow mirror mountain night orchard orphan passage pilgrim quarry "
    "railway rain river road room sea shore song staircase station stranger summer sun theatre tide tower town "
    "train valley voyage wall watchman weather well widow window winter wolf year"
)
CREATURES = nouns(
    "beetle bunting char cranefly crayfish dormouse fern gentian grayling hawkmoth iris lichen lily loach moss "
    "nuthatch orchid pipit plover poppy saxifrage sedge shrew snail thistle toad vole marsh-rail sand-lizard "
    "tree-frog"
)
OCCASIONS = nouns("Carnival Congress Fair Festival Games Market Procession Race Rally Regatta Show Tournament")
MONTHS = nouns("January February March April May June July August September October November December")
WEEKDAYS = nouns("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
UNITS = {
    "length": ("metres", "feet", "yards"),
    "distance": ("metres", "kilometres", "miles"),
    "mass": ("kilograms", "grams", "pounds"),
    "money": ("crowns", "dollars", "florins", "marks", "pounds", "thalers"),
}
