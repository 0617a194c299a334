"""Words that tell what kind of phrase stands where: forms of common verbs, conjunctions, prepositions."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODALS = _words("can cannot could may might must should will would")
AUXILIARIES = _words(
    """
    are aren't can't couldn't did didn't do does doesn't don't had hadn't has hasn't have haven't is isn't shouldn't
    was wasn't were weren't won't wouldn't
    """
)
# Verbs of business prose; other forms are made by rule.
BASE_FORMS = _words(
    """
    absorb accelerate accept accommodate account achieve acquire act adapt add address adjust adopt advance affect
    afford aim allocate allot allow alter anticipate appear approach arise ask assess assist assume assure attach
    attempt attract audit authorize average avoid ban bargain be bear become begin believe belong benefit bid block
    boast bode bolster boost bounce break breed bring broaden broker build bundle burden buy bypass cancel capitalize
    capture carry catch cater cause cede challenge change charge choose claim clear climb close coincide collaborate
    collapse collect combine come command compare compete complement complete complicate compress comprise conclude
    condense confirm confront connect conserve consider consolidate constrain contend continue contract contribute
    control convert convince coordinate correct correlate cost cover craft create credit curb cushion cut damage
    dampen deal debut decide decline decrease dedicate deepen defend define delay deleverage deliver demand
    demonstrate dent depart depend deploy depress derail deserve design destroy detect deter deteriorate develop
    devote dictate differ differentiate digest dilute diminish discount discourage discover dismantle displace dispute
    disrupt distribute disturb diversify divest do dominate double draw drive drop dwindle earn ease eat ebb edge
    educate eliminate embed embrace emerge empower enable encounter encourage end endure engage enhance enjoy enrich
    ensure entail enter entice entrench equip erode escalate establish evaluate evolve exceed excel exclude execute
    exhibit exist exit expand expect experience exploit export expose extend extinguish extract face facilitate fail
    fall feature fill finance find fit flow fluctuate focus follow force forecast foresee formulate foster fragment
    free fulfill fund gain gather generate get give go govern grow guarantee guide halt hamper handle happen harm
    harvest have heighten help highlight hinder hire hit hold house hurt identify ignore impact impair impede
    implement import impose improve incentivize include incorporate increase incur induce inflate inform inherit
    inhibit initiate innovate insulate integrate intensify interact intervene introduce invest involve isolate issue
    join justify keep kick know lag last laud launch lead learn leave leverage license lift like limit list locate
    lock look lose lower maintain make manage manifest manufacture mark market match materialize maximize mean meet
    migrate minimize mitigate model moderate monetize move narrow navigate near need neglect negotiate normalize
    nurture obtain obviate occur offer offset open operate oppose opt optimize originate outnumber outpace outsource
    outweigh oversee own participate pass pay peak perform permit persist persuade pick pioneer pivot plague plan play
    plunge pose position possess post preclude predict prefer present preserve press pressure prevent price prioritize
    process procure produce proliferate promise promote prop propel protect prove provide pull purchase pursue push
    put qualify quantify raise ramp rank rate reach react realize reallocate reap reassure rebalance rebound rebuild
    recapture receive recognize recommend reconsider recover recruit reduce refill refinance reflect refocus refuse
    regain register reignite reinforce reinvest reject relate relax release relieve relocate rely remain remedy remove
    renew repair repay replace replicate report represent repurchase request require rescue resemble reset reside
    resist resolve resonate respond restore restrict restructure resume resurge retain retire return revamp reverse
    revise revive reward rise risk roll run safeguard salvage satisfy saturate save scale scrap scrutinize secure see
    seek seem segment sell separate serve service settle share shield shift ship shop show shrink shut sidestep sign
    signal simplify sit skew slow solve sour source spark speak specialize spend sponsor spread spur squeeze stabilize
    stagnate stall stand standardize start stay steal steer stem stop store strain streamline strengthen stretch
    strive struggle subject succeed sue suffer suggest supplement supply support surge surpass sustain swap swing
    switch tackle take tap target tarnish tell temper tend test think threaten thrive tie tighten tout track trade
    trail train transfer transform translate travel trigger try turn undercut undermine underperform underpin
    understand underwrite unite unlock unveil upgrade uphold use utilize validate value vary vest view visit wait want
    warn warrant watch weaken weather weigh widen win wipe withdraw wither withstand work worsen yield
    """
)
IRREGULAR_PASTS = _words(
    """
    became began bought broke brought built came chose cut drew drove fed fell felt found gave got grew held hit hurt
    kept led left lost made meant met overcame paid put ran rose saw set shrank sold sought spent spread stood thought
    took undercut understood went withstood won
    """
)
# These double their last letter before "-ed".
_DOUBLING = _words("ban bid deter drop fit incur occur permit plan prop scrap ship shop spur stem stop swap tap")
SUBORDINATORS = _words(
    """
    although as because how if once since so than that though unless until what when where whether which while who
    whom whose why
    """
)
RELATIVES = _words("that where which who whom whose")
DETERMINERS = _words("a an any each every her his its no our some the their these this those your")
NOMINATIVES = _words("he it she they we you")
# What these stand for was said before.
BY_REFERENCE = _words(
    """
    both he her his it it's its she such that their them there's these they they're this those which
    """
)
# A clause follows.
CLAUSE_CUES = _words("although as because believe since so that therefore think though thus where while")
# A clause starts after one of these, after a comma or with its sentence; elsewhere its subject was cut.
BEFORE_CLAUSES = CLAUSE_CUES | _words(
    """
    ( , - : after and anticipate argue assume assumes before but doubt estimate expect expects fact forecast given if
    mean means note once or project reason say see suggest suggests unless until when whether which —
    """
)
# A noun phrase follows.
NOUN_CUES = _words(
    """
    about after against amid by despite during following for from given in of on through via with without
    """
)
PREPOSITIONS = NOUN_CUES | _words(
    "at as than over under between per into onto across within toward towards among around beyond before above below "
    "behind outside inside until and or but both all half not only to least well plus"
)
# Adjectives that end a phrase as a predicate, not before a noun.
PREDICATIVES = _words(
    "negligible necessary intact unclear uncertain likely available low high strong weak stable flat difficult"
)
# A noun phrase follows, after "to".
NOUN_CUES_WITH_TO = _words("contribute contributed contributes due lead leading leads led owing thanks")
# A noun phrase follows as what is made or foreseen.
MAKING = _words(
    """
    anticipate create creates creating deliver delivering delivers expect forecast gain gaining gains generate
    generates generating offer offering offers provide provides providing see yield yielding yields
    """
)
# A thing follows with what becomes of it: "makes the class more viable".
MAKES = _words("make makes made making give gives gave given giving")
# Who gets it follows, then "with": "provides the firm with a base".
SUPPLYING = _words("provide provides providing provided leave leaves leaving")
# A subject and a base form follow: "helped the rail capitalize on trade".
HELPING = _words("help helps helped helping let lets letting")
# These stand between a subject and its verb.
ADVERBS = _words("also then still never often always already thus therefore")
# "Prices to rise" follows.
ALLOWING = _words(
    """
    allow allowed allowing allows anticipate cause caused causes causing drive enable enabled enables enabling expect
    force forced forces forcing forecast lead leading leads permit permits permitting project
    """
)
# Joins a phrase to what is before it.
LEADING = _words("also and as because but consequently hence since so that then therefore thus")
# The same, before a comma.
CONNECTIVES = LEADING | _words(
    "first second third finally further furthermore moreover however overall additionally still similarly indeed"
)
# No whole phrase starts so,
BAD_START = _words(
    """
    's about after although amid and as at because before between but by conjunction due during far for from given how
    if in into like n't not of on once or over per rather since such than though through under unless until versus via
    well what when whether which while who why with without
    """
)
# and none ends so.
DANGLING = _words(
    """
    a about after also although amid an and are as at be because been before between both but by can could due
    especially even for from had has have if in including increasingly into is its largely less likely may might more
    most mostly must not of on only or other our over partially particularly per primarily should such than that the
    their these this those through to very via was were when which while who will with would
    """
)
# A noun phrase before one of these goes on.
CONTINUES_NOUN = _words("and as at for from in of on or than to with")
# Forms in -ing that mostly are nouns or adjectives at the start of a phrase.
NOT_GERUNDS = _words(
    """
    accelerating advertising aging amazing anything banking boeing boston building changing competing declining
    deteriorating during emerging engineering everything evolving existing expanding falling financing funding gaming
    growing housing improving increasing leading learning lending licensing manufacturing marketing mounting nothing
    nursing ongoing operating outstanding pricing recurring remaining rising shipping slowing something spending
    strengthening switching testing trading training underlying weakening wearing
    """
)
ALWAYS_LOWER = _words("both high less low many more most several some strong we")
NOT_PLURAL = _words("access always business has is its less process this us was")


def _s_form(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ies"
    return f"{base}es" if base.endswith(("s", "sh", "ch", "x", "z", "o")) else f"{base}s"


def _past_form(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ied"
    if base in _DOUBLING:
        return f"{base}{base[-1]}ed"
    return f"{base}d" if base.endswith("e") else f"{base}ed"


S_FORMS = frozenset(_s_form(base) for base in BASE_FORMS - {"be", "have", "do"})
PAST_FORMS = frozenset(_past_form(base) for base in BASE_FORMS)
