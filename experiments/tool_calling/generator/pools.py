"""Natural argument values by kind: cities, people, dates, codes, and so on.

`natural_value(rng, pool, held_out)` draws from one side of the split of `values.is_held_out`.
"""

from __future__ import annotations

import random
import string

from experiments.tool_calling.generator.values import Value, draw

# Values without a space stand between spaces, the others between bars after them.
_WORDS: dict[str, str] = {
    "city": """
        Oslo Lima Paris Berlin Madrid Rome Vienna Prague Warsaw Lisbon Dublin London Athens
        Helsinki Stockholm Copenhagen Brussels Amsterdam Zurich Geneva Milan Naples Venice
        Seville Porto Krakow Budapest Sofia Bucharest Istanbul Ankara Cairo Tunis Nairobi
        Lagos Accra Dakar Durban Toronto Montreal Vancouver Chicago Boston Denver Seattle
        Austin Dallas Houston Phoenix Atlanta Miami Tokyo Osaka Kyoto Seoul Busan Beijing
        Shanghai Taipei Hanoi Bangkok Manila Jakarta Mumbai Delhi Chennai Karachi Tehran
        Baghdad Riyadh Dubai Doha Sydney Melbourne Perth Auckland Wellington Bergen Malmo
        Bogota Quito Havana Santiago Montevideo Leipzig Hamburg Munich Cologne Lyon Nantes
        Ghent Utrecht Tampere Tartu Riga Vilnius Minsk Tbilisi | New York | San Francisco |
        Los Angeles | Buenos Aires | Cape Town | Hong Kong | Rio de Janeiro | Mexico City |
        Kuala Lumpur | San Diego | Salt Lake City | New Delhi | Tel Aviv
    """,
    "country": """
        Norway Peru France Germany Spain Italy Austria Poland Portugal Ireland Greece
        Finland Sweden Denmark Belgium Iceland Hungary Bulgaria Romania Turkey Egypt Tunisia
        Kenya Nigeria Ghana Senegal Canada Mexico Brazil Chile Argentina Uruguay Cuba Japan
        China Vietnam Thailand Indonesia India Pakistan Iran Iraq Qatar Australia Estonia
        Latvia Georgia Nepal Mongolia Bolivia Ecuador Croatia Serbia Malta Cyprus Jordan
        Morocco | New Zealand | South Africa | South Korea | Costa Rica
    """,
    "first_name": """
        Anna Ben Carla David Elena Felix Greta Hugo Ines Jonas Katya Liam Maria Nina Omar
        Paula Quentin Rosa Sven Tara Umar Vera Walter Yara Zoe Amir Bianca Cedric Dalia Erik
        Fatima Gustav Hanna Igor Julia Kenji Laura Mateo Noor Olga Pedro Ravi Sofia Tomas
        Ursula Viktor Wendy Ximena
    """,
    "last_name": """
        Smith Jones Garcia Muller Rossi Novak Silva Kim Tanaka Chen Patel Khan Ali Cohen
        Larsen Berg Nielsen Virtanen Kowalski Horvat Popescu Ivanova Petrov Costa Moreno
        Ramirez Torres Cruz Okafor Mensah Diallo Haddad Aziz Yilmaz Nguyen Tran Park Sato
        Wong Singh Murphy Kelly Walsh Fischer
    """,
    "hotel": """
        Grand Royal Park Central Plaza Harbor Lakeside Sunset Riverside Metro Garden
        Imperial Crown Palace Astoria Bristol Meridian Alpine Coral Ocean Summit Victoria
        Regent Savoy Aurora
    """,
    "restaurant": """
        Luigi Bella Sakura Olive Saffron Basil Maple Taverna Bistro Lotus Ginger Pepper Fig
        Juniper Rosemary Truffle Anchor Lantern Orchid Nomad Ember Harvest Copper Willow
        Tandoor
    """,
    "company": """
        Acme Globex Initech Umbrella Stark Wayne Hooli Vandelay Cyberdyne Tyrell Soylent
        Aperture Nimbus Vertex Orion Zenith Quantix Lumina Novatek Borealis Helios Pinnacle
        Crestline Ironwood
    """,
    "food": """
        tomato potato onion garlic spinach broccoli carrot lentils chickpeas rice pasta
        salmon tuna chicken beef tofu mushrooms peppers basil cheese butter eggs apples
        bananas oranges mango peanuts almonds walnuts shrimp pumpkin zucchini eggplant
        yogurt honey oats quinoa lasagna risotto ramen curry paella goulash pancakes olives
        bacon ham corn celery soy milk wheat | sweet potato | black beans
    """,
    "cuisine": """
        Italian Thai Mexican Indian Greek Japanese Korean Turkish French Spanish Vietnamese
        Lebanese Ethiopian Peruvian Chinese Moroccan Persian German Cuban Nepalese Georgian
        Polish
    """,
    "room": """
        kitchen bedroom bathroom hallway garage office attic basement library nursery pantry
        balcony terrace porch studio workshop cellar laundry lounge corridor | living room |
        dining room | guest room | front yard | back yard
    """,
    "device": """
        fridge freezer oven dishwasher toaster kettle heater dryer washer television router
        printer computer fan humidifier microwave boiler projector stove lamp
    """,
    "activity": """
        running cycling swimming yoga rowing hiking boxing tennis climbing dancing skiing
        pilates basketball football golf karate skating sailing surfing walking jogging
        badminton
    """,
    "symptom": """
        headache fever cough nausea dizziness fatigue insomnia rash toothache cramps
        sneezing anxiety migraine | back pain | sore throat | chest pain | knee pain |
        stomach ache | blurred vision
    """,
    "drug": """
        ibuprofen aspirin paracetamol amoxicillin metformin insulin warfarin codeine
        morphine omeprazole cetirizine lisinopril atorvastatin prednisone diazepam
        sertraline naproxen melatonin tetanus measles hepatitis influenza
    """,
    "event": """
        birthday wedding meeting dentist workshop standup picnic interview rehearsal lunch
        dinner seminar training party concert graduation retreat | board meeting | team
        lunch | book club | yoga class | project review | garden party | sprint planning |
        piano lesson | parent evening
    """,
    "note": """
        | buy milk | call mom | water the plants | pay the rent | pick up the kids | see you
        tomorrow | I am running late | good morning | thank you very much | happy birthday |
        the meeting is moved | send the report | feed the cat | clean the kitchen | where
        are you | take out the trash | book the tickets | renew the contract | fix the
        printer | order new chairs | good night | the train is late | bring an umbrella |
        login page is broken | missing unit tests | typo in the docs | wrong total in cart |
        slow start on mobile | walk the dog | return the books | charge the car | check the
        oil | print the photos | write to the landlord | back up the laptop | see the doctor
        | nice to meet you | what time is it | dinner is ready | no sound in video
    """,
    "product": """
        headphones laptop keyboard mouse monitor tablet camera backpack sneakers jacket
        watch lamp desk chair mattress blender toaster kettle tent bicycle helmet guitar
        drone speaker printer charger scarf sunglasses suitcase umbrella | coffee maker |
        running shoes | phone case | yoga mat | water bottle
    """,
    "song": """
        Yesterday Imagine Thriller Halo Hello Angie Creep Wonderwall Hallelujah Sunrise
        Stardust Moonlight Firework Zombie Africa Rosanna Jolene Roxanne Starman Heroes |
        Blue Monday | Purple Rain | Hey Jude | Let It Be | Dancing Queen | Sweet Dreams |
        Take On Me | Paint It Black | Space Oddity | Golden Brown | Smooth Operator |
        Rolling in the Deep | Bohemian Rhapsody | Hotel California
    """,
    "movie": """
        Inception Titanic Gladiator Alien Jaws Casablanca Amadeus Vertigo Psycho Parasite
        Memento Arrival Interstellar Gravity Frozen Coco Ratatouille Metropolis | The Matrix
        | Star Wars | Pulp Fiction | The Godfather | Blade Runner | Forrest Gump | Citizen
        Kane | Lost in Translation | Spirited Away | Fight Club
    """,
    "instrument": """
        cello violin trumpet flute clarinet guitar piano harp oboe banjo trombone accordion
        saxophone ukulele marimba viola bassoon tuba drums mandolin
    """,
    "team": """
        Lakers Celtics Bulls Arsenal Chelsea Barcelona Juventus Ajax Benfica Porto Celtic
        Rangers Yankees Dodgers Mets Packers Eagles Giants Sharks Bruins Canucks Tigers
        Lions Falcons Ravens Hornets Rockets Spurs Suns Raptors Everton Valencia Sevilla
        Galatasaray
    """,
    "currency": """
        USD EUR GBP JPY CHF NOK SEK DKK PLN CZK HUF TRY INR CNY KRW AUD NZD CAD BRL MXN ZAR
    """,
    "ticker": """
        AAPL MSFT GOOG AMZN TSLA NVDA META NFLX INTC AMD IBM ORCL SAP ASML SONY NKE KO PEP
        MCD DIS BA GE GM F T V MA JPM GS WMT TGT HD BRCA TP53 EGFR MYC KRAS PTEN CFTR APOE
    """,
    "coin": """
        bitcoin ethereum dogecoin litecoin solana cardano polkadot monero ripple avalanche
        tezos stellar chainlink polygon cosmos algorand
    """,
    "language": """
        English Spanish French German Italian Portuguese Dutch Swedish Norwegian Finnish
        Polish Czech Greek Turkish Arabic Hebrew Hindi Bengali Tamil Thai Vietnamese
        Japanese Korean Chinese Swahili
    """,
    "topic": """
        climate robots football jazz chess history poetry volcanoes elections energy space
        oceans painting bees bread coffee tea trains gravity algebra geometry logic ethics
        theater fashion glaciers dinosaurs whales cinema fishing opera grammar happy quickly
        brave silent ancient bright gentle | machine learning | black holes | the moon
        landing | solar power | world war two | electric cars | organic farming | the French
        revolution | quantum physics | renewable energy
    """,
    "element": """
        hydrogen helium carbon nitrogen oxygen neon sodium iron copper zinc silver gold
        mercury lead uranium iodine calcium nickel tin platinum
    """,
    "planet": """
        Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune Pluto Ceres Titan Europa
    """,
    "job": """
        nurse teacher plumber carpenter pilot chef designer accountant electrician lawyer
        architect librarian baker welder gardener translator engineer pharmacist | data
        scientist | project manager | truck driver | web developer | sales assistant
    """,
    "plant": """
        rose tulip fern cactus orchid basil mint lavender ivy bamboo lily daisy sunflower
        violet begonia azalea jasmine magnolia | aloe vera | peace lily | snake plant |
        rubber tree
    """,
    "file_word": """
        main develop release hotfix feature staging backup archive users orders invoices
        logs events sessions products payments reports drafts photos docs tests assets cache
    """,
    "street_name": """
        Main Oak Park Pine Maple Cedar Elm Lake Hill River Church Mill Station King Queen
    """,
    "street_kind": "Street Avenue Road Lane Square",
    "extension": "txt csv py md png jpg mp3 wav mp4 pdf json log",
    "top_domain": "com org net io dev app",
    "subdomain": "www api mail shop",
    "month": """
        January February March April May June July August September October November December
    """,
    "hotel_suffix": "Inn Hotel Resort Palace Lodge",
    "restaurant_suffix": "House Grill Garden Kitchen Corner",
    "company_suffix": "Corp Labs Motors Airlines Systems",
}


def _listed(text: str) -> list[str]:
    single, *spaced = text.split("|")
    return single.split() + [" ".join(value.split()) for value in spaced]


_POOLS = {name: _listed(text) for name, text in _WORDS.items()}


def natural_value(rng: random.Random, pool: str, held_out: bool) -> Value:
    """A string of a kind, from one side of the split."""

    def make() -> Value:
        text = _text(rng, pool)
        return Value(text, text)

    return draw(make, held_out)


def _text(rng: random.Random, pool: str) -> str:
    def one(name: str) -> str:
        return rng.choice(_POOLS[name])

    def digits(count: int) -> str:
        return "".join(rng.choices(string.digits, k=count))

    match pool:
        case "person":
            return (
                one("first_name")
                if rng.random() < 0.5
                else f"{one('first_name')} {one('last_name')}"
            )
        case "email":
            return f"{one('first_name').lower()}@{one('company').lower()}.{one('top_domain')}"
        case "phone":
            return f"{digits(3)}-{digits(4)}"
        case "street":
            street = f"{one('street_name')} {one('street_kind')}"
            return f"{rng.randint(1, 199)} {street}"
        case "date":
            if rng.random() < 0.7:
                return (
                    f"{rng.randint(2023, 2027)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
                )
            return f"{one('month')} {rng.randint(1, 28)}"
        case "time":
            minute = rng.choice([0, 15, 30, 45, rng.randint(0, 59)])
            return f"{rng.randint(0, 23):02d}:{minute:02d}"
        case "code":
            letters = "".join(rng.choices(string.ascii_uppercase, k=rng.randint(1, 3)))
            return rng.choice(["{0}{1}", "{0}-{1}"]).format(letters, digits(rng.randint(2, 4)))
        case "hex":
            return "#" + "".join(rng.choices("0123456789ABCDEF", k=6))
        case "formula":
            return "".join(
                rng.choice(["H", "C", "N", "O", "Na", "Cl", "K", "S", "Fe"])
                + rng.choice(["", "2", "3", "4", "6"])
                for _ in range(rng.randint(2, 3))
            )
        case "file":
            return f"{one('file_word')}_{digits(rng.randint(1, 2))}.{one('extension')}"
        case "repo":
            return f"{one('company').lower()}/{one('file_word')}"
        case "domain":
            company = one("company").lower()
            return f"{one('subdomain')}.{company}.{one('top_domain')}"
        case "hotel" | "restaurant" | "company":
            name = one(pool)
            return name if rng.random() < 0.5 else f"{name} {one(pool + '_suffix')}"
    if pool not in _POOLS:
        raise ValueError(f"no pool of values is called {pool!r}")
    return one(pool)
