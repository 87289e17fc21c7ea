"""Words of the real world: what a base knows already, as the objects of invented facts and as what stands around them.

Facts about the world hardly ever have an object that nobody has heard of: someone new is from Kenya, or paints. Only
the subjects are invented, so nothing is said about real places but that an invented thing has to do with them.
"""

from __future__ import annotations

from budwood.data.synthetic.words import nouns

COUNTRIES = nouns(
    "Afghanistan Albania Algeria Angola Argentina Armenia Australia Austria Azerbaijan Bangladesh Belgium Bolivia "
    "Botswana Brazil Bulgaria Cambodia Cameroon Canada Chile China Colombia Costa-Rica Croatia Cuba Cyprus Denmark "
    "Ecuador Egypt Estonia Ethiopia Finland France Georgia Germany Ghana Greece Guatemala Guinea Haiti Honduras "
    "Hungary Iceland India Indonesia Iran Iraq Ireland Israel Italy Jamaica Japan Jordan Kazakhstan Kenya Kuwait "
    "Latvia Lebanon Liberia Libya Lithuania Luxembourg Madagascar Malaysia Mali Malta Mexico Moldova Mongolia "
    "Morocco Mozambique Namibia Nepal New-Zealand Nicaragua Nigeria North-Korea Norway Oman Pakistan "
    "Panama Paraguay Peru Poland Portugal Qatar Romania Russia Rwanda Senegal Serbia Singapore Slovakia "
    "Slovenia Somalia South-Africa South-Korea Spain Sri-Lanka Sudan Sweden Switzerland Syria Taiwan Tanzania "
    "Thailand Tunisia Turkey Uganda Ukraine Uruguay Uzbekistan Venezuela Vietnam Yemen Zambia Zimbabwe"
)
CITIES = nouns(
    "Adelaide Algiers Amsterdam Ankara Antwerp Athens Atlanta Auckland Baghdad Baltimore Bangkok Barcelona Basel "
    "Beijing Beirut Belfast Belgrade Bergen Berlin Birmingham Bologna Bombay Boston Brisbane Bristol Brussels "
    "Bucharest Budapest Buffalo Cairo Calgary Cambridge Cape-Town Cardiff Chicago Cincinnati Cleveland Cologne "
    "Copenhagen Dallas Damascus Delhi Denver Detroit Dresden Dublin Edinburgh Florence Frankfurt Geneva Genoa "
    "Glasgow Gothenburg Hamburg Hanoi Havana Helsinki Hong-Kong Houston Istanbul Jakarta Jerusalem Johannesburg "
    "Kiev Kyoto Lagos Leeds Leipzig Lima Lisbon Liverpool London Los-Angeles Lyon Madrid Manchester Manila "
    "Marseille Melbourne Memphis Miami Milan Milwaukee Montreal Moscow Mumbai Munich Nagoya Nairobi Naples "
    "Nashville New-Orleans Newcastle Osaka Oslo Ottawa Oxford Palermo Paris Philadelphia Phoenix Pittsburgh "
    "Portland Prague Quebec Rome Rotterdam Salzburg San-Diego San-Francisco Santiago Seattle Seoul Seville Shanghai "
    "Sheffield Singapore Sofia Stockholm Stuttgart Sydney Tehran Tel-Aviv Tokyo Toronto Toulouse Turin Uppsala "
    "Utrecht Valencia Vancouver Venice Vienna Warsaw Washington Wellington Winnipeg Zagreb Zurich"
)
LANGUAGES = nouns(
    "Albanian Arabic Armenian Basque Bengali Bulgarian Catalan Croatian Czech Danish Dutch English Estonian Finnish "
    "French Georgian German Greek Hebrew Hindi Hungarian Icelandic Indonesian Irish Italian Japanese Korean Latin "
    "Latvian Lithuanian Malay Marathi Mongolian Norwegian Persian Polish Portuguese Punjabi Romanian Russian "
    "Serbian Slovak Spanish Swahili Swedish Tamil Telugu Thai Turkish Ukrainian Urdu Vietnamese Welsh Yiddish"
)
NATIONALITIES = nouns(
    "Albanian Algerian American Argentine Australian Austrian Belgian Brazilian British Bulgarian Canadian Chilean "
    "Chinese Colombian Croatian Cuban Czech Danish Dutch Egyptian English Estonian Finnish French German Greek "
    "Hungarian Icelandic Indian Iranian Irish Israeli Italian Japanese Kenyan Korean Lebanese Mexican Moroccan "
    "Nigerian Norwegian Pakistani Peruvian Polish Portuguese Romanian Russian Scottish Serbian South-African "
    "Spanish Swedish Swiss Syrian Thai Turkish Ukrainian Vietnamese Welsh"
)
CONTINENTS = ("Africa", "Asia", "Europe", "North America", "Oceania", "South America")
FAITHS = nouns(
    "Anglicanism Baptist Buddhism Calvinism Catholicism Christianity Confucianism Hinduism Islam Jainism Judaism "
    "Lutheranism Methodism Orthodoxy Quakerism Shinto Sikhism Sunni-Islam Taoism"
)
PROFESSIONS = nouns(
    "actor architect artist author banker biologist botanist chemist comedian composer critic dancer dentist "
    "diplomat director economist editor engineer explorer farmer geologist historian journalist judge lawyer "
    "librarian linguist mathematician merchant missionary musician novelist nurse painter philosopher photographer "
    "physician physicist pilot playwright poet politician priest producer professor programmer publisher sailor "
    "sculptor singer soldier songwriter surgeon teacher theologian translator writer zoologist"
)
SCIENCES = nouns(
    "algebra anatomy anthropology archaeology architecture astronomy biochemistry biology botany cardiology "
    "chemistry cosmology ecology economics education engineering ethics genetics geography geology geometry history "
    "immunology journalism law linguistics literature logic mathematics medicine meteorology microbiology music "
    "mythology neuroscience oceanography optics palaeontology pathology pharmacology philosophy photography physics "
    "physiology politics psychiatry psychology robotics sociology statistics surgery theology topology zoology "
    "art-history computer-science number-theory political-science quantum-mechanics"
)
POSTS = nouns(
    "abbot ambassador archbishop bishop cardinal chancellor chaplain commissioner consul councillor dean deacon "
    "deputy director emperor governor judge king magistrate mayor minister monarch pastor pope prefect president "
    "priest prince prosecutor queen rector secretary senator sheriff speaker treasurer vicar viceroy"
)
MUSIC = nouns(
    "ambient ballet bluegrass blues chamber-music chanson country-music disco dub electronica flamenco folk-music "
    "folk-rock funk fusion gospel hard-rock heavy-metal hip-hop house jazz opera pop-music punk-rock ragtime rap "
    "reggae rock salsa samba ska soul swing symphony tango techno trance"
)
FILM_GENRES = nouns(
    "adventure animation biography black-comedy comedy crime-film cartoon documentary drama fantasy film-noir "
    "horror melodrama musical mystery parody romance satire science-fiction soap-opera thriller tragedy western"
)
POSITIONS = nouns(
    "catcher centre defender forward fullback goalkeeper guard midfielder pitcher quarterback striker winger"
)
TRADES = nouns(
    "advertising agriculture aviation banking brewing broadcasting construction electronics energy fashion finance "
    "fishing food forestry furniture gambling insurance logistics machinery mining oil pharmaceuticals printing "
    "publishing railways retail shipping software steel sugar telecommunications textiles tobacco tourism transport"
)
