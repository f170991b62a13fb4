"""What forming questions needs of English: function words, verb forms, nouns that tell the kind of a name."""

from __future__ import annotations

import re

ARTICLES = frozenset("a an the".split())
DETERMINERS = ARTICLES | frozenset(
    "this that these those its his her their our my your each every some any no all both another such most many "
    "several few other".split()
)
PREPOSITIONS = frozenset(
    "of in on at to for from by with into onto through during after before between among against under over about "
    "around near within without along across behind beyond until since toward towards upon via as than like "
    "despite".split()
)
PLACE_PREPOSITIONS = frozenset("in at near from to around along across".split())
CONJUNCTIONS = frozenset(
    "and or but nor so yet because although though while whereas when where if unless which who whom whose that".split()
)
LITTLE_WORDS = ARTICLES | PREPOSITIONS
PRONOUNS = frozenset("it he she they this these those we i you there one him them".split())
AUXILIARIES = frozenset(
    "is are was were has have had can could will would may might must should shall did does do".split()
)
OPENERS = frozenset(
    "however also thus therefore then instead moreover furthermore meanwhile additionally consequently still even "
    "later today now finally first initially originally eventually generally usually often typically and but or so "
    "yet".split()
)
STOP_WORDS = (
    DETERMINERS
    | PREPOSITIONS
    | CONJUNCTIONS
    | PRONOUNS
    | AUXILIARIES
    | OPENERS
    | frozenset("be been being not it's n't s t what how why more less very just only up out off down here".split())
)
NUMBER_WORDS = frozenset(
    "two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand million "
    "billion dozen".split()
)
MONTHS = frozenset("january february march april may june july august september october november december".split())

# Nouns that make a name a thing of their kind: "Sinai Peninsula" answers "which peninsula".
KINDS = frozenset(
    "river lake mountain mountains island islands peninsula sea ocean bay valley desert forest park city town "
    "village county state province country region district street avenue road bridge building castle palace museum "
    "library cathedral church abbey temple hospital stadium airport station school college university institute "
    "academy company corporation group bank agency commission committee council court parliament party army navy "
    "war battle treaty agreement act law amendment empire dynasty kingdom republic league cup championship team "
    "club band album song film movie novel book series show episode game award prize theory theorem equation method "
    "algorithm language religion movement revolution society association organization foundation program project "
    "system".split()
)

_PAST = """
cost cost became become began begin bought buy brought bring built build broke break came come caught catch chose
choose cut cut dealt deal drew draw drove drive fell fall felt feel fought fight found find flew fly forbade forbid
forgot forget froze freeze gave give got get grew grow heard hear held hold hit hit kept keep knew know laid lay led
lead left leave lent lend let let lost lose made make meant mean met meet paid pay put put ran run read read rode ride
rose rise said say sang sing sank sink sat sit saw see sent send set set shook shake shot shoot showed show slept
sleep sold sell sought seek spent spend split split spoke speak spread spread stood stand stole steal struck strike
swam swim swore swear taught teach thought think threw throw told tell took take understood understand went go
withdrew withdraw won win wore wear wrote write arose arise fled flee bore bear beat beat lit light
""".split()
_PRESENT = """
contains contain includes include provides provide uses use consists consist comes come becomes become takes take
makes make gives give allows allow requires require refers refer belongs belong lies lie lives live plays play stands
stand means mean remains remain occurs occur causes cause produces produce serves serve holds hold features feature
depends depend covers cover forms form offers offer operates operate returns return begins begin ends end flows flow
leads lead runs run works work needs need follows follow describes describe represents represent shows show tells tell
states state involves involve receives receive supports support helps help creates create carries carry goes go gets
get stars star appears appear exists exist grows grow varies vary tends tend seems seem sees see wants want says say
finds find
""".split()
_NO_PAST = frozenset("need feed seed speed breed greed indeed hundred sacred naked shed bred fed red bed wed".split())
PAST_LEMMAS = dict(zip(_PAST[::2], _PAST[1::2], strict=True))
PRESENT_LEMMAS = dict(zip(_PRESENT[::2], _PRESENT[1::2], strict=True))

_SILENT_E = re.compile(
    r"(?:[^eo]at|iz|[^a]is|yz|ov|lv|rv|uc|iv|ag|ng|uir|[^ae]ir|[^e]ar|ur|ud|id|as|os|us|ac|nc|rc|[^aeo]in|ib|ut|gu|nu|"
    r"[bdgkptz]l|ul|reat|[^aeiou]or|ap|ok|ak|ik|op)$"
)


def past_lemma(verb: str) -> str | None:
    """The infinitive of a past tense in lower case; None where the word does not look like one."""
    if verb in PAST_LEMMAS:
        return PAST_LEMMAS[verb]
    if len(verb) < 4 or not verb.endswith("ed") or verb in _NO_PAST:
        return None
    stem = verb[:-2]
    if stem.endswith("e"):
        return f"{stem}e"
    if stem.endswith("i"):
        return f"{stem[:-1]}y"
    if stem[-1] == stem[-2] and stem[-1] not in "lsze":
        return stem[:-1]
    return f"{stem}e" if _SILENT_E.search(stem) else stem


def present_lemma(verb: str) -> str | None:
    """The infinitive of a common third person in lower case; None where the word is not one."""
    return PRESENT_LEMMAS.get(verb)
