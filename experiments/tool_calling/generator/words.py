"""Words for invented tools: verbs, nouns, parameter names, and a source of words that do not exist.

A model that has seen 150 tools can learn them by heart. One that has seen a new pair of verb and
noun in every prompt, and names that mean nothing, has to read.
"""

from __future__ import annotations

import random

from experiments.tool_calling.generator.english import (
    ENGLISH_ADJECTIVES,
    ENGLISH_NOUNS,
    ENGLISH_VERBS,
)


def _words(text: str) -> list[str]:
    return text.split()


VERBS = _words(
    """
    get find search fetch show list check compute calculate convert create make add remove
    delete update set send book order reserve cancel start stop open close play pause track
    compare rank sort filter generate translate summarize analyze validate verify schedule plan
    measure estimate predict resolve lookup query load save export import print scan record
    upload download share invite assign rate review lock unlock enable disable count merge split
    rename copy move notify report monitor transfer pay charge refund register submit approve
    archive tag draw render clean inspect route
    """
)

NOUNS = _words(
    """
    weather forecast flight hotel ticket train bus taxi route trip map city country price stock
    market currency account balance invoice payment loan tax budget song album artist playlist
    concert movie actor film series episode book author library chapter recipe meal dish diet
    menu restaurant table calendar event meeting reminder alarm timer clock task project issue
    note message email contact phone device lamp light heater thermostat camera door sensor
    battery robot matrix vector triangle circle number prime fraction graph equation integral
    angle team player match league score season stadium heart sleep workout run step calorie
    weight dose medicine doctor patient clinic allergy repository branch commit build server
    domain certificate database table query log token file folder image photo video audio font
    color palette product order cart coupon shipment parcel package store address user profile
    password role group job candidate salary course lesson exam student teacher word phrase
    sentence language synonym rhyme poem quote news headline article topic planet star moon
    satellite orbit element molecule gene protein plant tree flower soil crop farm animal dog
    cat bird house room garden rent mortgage car engine tire fuel charger parking permit visa
    passport border vote law court license patent brand campaign survey customer lead ticket
    game level quest weapon puzzle card dice coin medal museum painting sculpture gallery
    exhibit bridge tower tunnel river lake mountain beach island harbor port ship boat ferry
    cargo crane mine steel paper glass cotton
    """
)

PARAMETERS = _words(
    """
    name title city country place location origin destination source target start end date time
    day month year hour minutes seconds duration amount quantity count limit page size width
    height length depth weight mass speed distance radius angle rate ratio factor percent price
    cost budget min_price max_price currency unit code id user_id order_id user owner author
    sender recipient email phone address street zip_code language category kind type genre topic
    subject query keyword text message body note label tag color brand model version format
    level priority status mode theme style material temperature pressure volume voltage power
    team player season round score grade rank age gender height_cm weight_kg doctor symptom dose
    drug recipe ingredient servings diet room floor seat row gate flight airline hotel guests
    nights check_in artist album song playlist movie actor director channel device file path
    folder branch repository commit host port domain key value token symbol ticker shares
    principal interest years term base exponent numerator denominator first second third lower
    upper threshold step index offset region state planet species element verbose include_tax
    express public urgent recursive detailed gift_wrap
    """
)

DESCRIBED = _words(
    """
    quickly service system data details current local new daily simple general given online
    public open records information tool helper based latest known free full basic
    """
)

# Sounds of English: what is made of them falls into the same word pieces as words that a model
# has never met, so copying it teaches to copy those.
_ONSETS = _words(
    """
    b bl br c ch cl cr d dr f fl fr g gl gr h j k l m n p ph pl pr qu r s sc sh sk sl sm sn sp
    st str sw t th tr tw v w wh y z
    """
)
_NUCLEI = _words("a a a e e e i i i o o o u u ai au ay ea ee ie io oa oi oo ou ow")
_CODAS = _words(
    """
    b ck ct d ff ft g l ll lt m mb mp n nce nd ng nk nt p pt r rch rd rk rm rn rt s sh sk ss st t
    th x
    """
)
_ENDINGS = _words(
    "able age al ance ant ar ary ate ation ed ent er ery ess et ful ic ine ing ion ish ist ity ive "
    "le ment ness on or ous tion ture um ure us y"
)


def pseudo_word(rng: random.Random, syllables: int | None = None) -> str:
    """A word that means nothing: of sounds, or the head of one English word on another's tail."""
    if syllables is None and rng.random() < 0.5:
        head, tail = rng.choice(ENGLISH_NOUNS), rng.choice(ENGLISH_NOUNS)
        return head[: rng.randint(2, 4)] + tail[-rng.randint(2, 5) :]
    count = syllables or rng.choice([1, 1, 2, 2, 3])
    text = "".join(
        rng.choice(_ONSETS)
        + rng.choice(_NUCLEI)
        + (rng.choice(_CODAS) if rng.random() < 0.45 else "")
        for _ in range(count)
    )
    return text + (rng.choice(_ENDINGS) if count > 1 and rng.random() < 0.4 else "")


def verb(rng: random.Random) -> str:
    """An English verb, mostly one of those that tools are named by."""
    return rng.choice(VERBS if rng.random() < 0.5 else ENGLISH_VERBS)


def noun(rng: random.Random) -> str:
    """An English noun or, now and then, an adjective."""
    drawn = rng.random()
    if drawn < 0.15:
        return rng.choice(NOUNS)
    return rng.choice(ENGLISH_NOUNS if drawn < 0.85 else ENGLISH_ADJECTIVES)


def word(rng: random.Random) -> str:
    """A noun, or a word that means nothing."""
    return noun(rng) if rng.random() < 0.7 else pseudo_word(rng)
