"""One module a dataset: raw rows to EventSample, with the filters that give the published counts."""

from __future__ import annotations

from data_builders.raw.source import Source
from data_builders.sources.alphanli import ALPHANLI
from data_builders.sources.boxes import BOXES
from data_builders.sources.cider import CIDER
from data_builders.sources.cosmosqa import COSMOSQA
from data_builders.sources.cpi_facts import CPI_FACTS
from data_builders.sources.cqa import CQA
from data_builders.sources.crepe import CREPE
from data_builders.sources.ecare import ECARE
from data_builders.sources.ester import ESTER
from data_builders.sources.faitheval import FAITHEVAL
from data_builders.sources.habit import HABIT
from data_builders.sources.ifqa import IFQA
from data_builders.sources.kre_squad import KRE_SQUAD
from data_builders.sources.matres import MATRES
from data_builders.sources.mctaco import MCTACO
from data_builders.sources.memotrap import MEMOTRAP
from data_builders.sources.nq_swap import NQ_SWAP
from data_builders.sources.openpi2 import OPENPI2
from data_builders.sources.socialiqa import SOCIALIQA
from data_builders.sources.storycloze import STORYCLOZE
from data_builders.sources.tempreason import TEMPREASON
from data_builders.sources.timeqa import TIMEQA
from data_builders.sources.torque import TORQUE
from data_builders.sources.tracie import TRACIE
from data_builders.sources.wiqa import WIQA

PIPER_SOURCES = (TEMPREASON, TIMEQA, TRACIE, MCTACO, CIDER, ESTER, CQA, COSMOSQA, ECARE, IFQA, WIQA)
_OUT_OF_DISTRIBUTION = (STORYCLOZE, SOCIALIQA, ALPHANLI)
_SYSTEMS = (CREPE, OPENPI2)
CONFLICT_SOURCES = (MATRES, TORQUE, KRE_SQUAD, NQ_SWAP, FAITHEVAL, MEMOTRAP, CPI_FACTS)
_GENERATED = (BOXES, HABIT)
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (*_GENERATED, *PIPER_SOURCES, *_OUT_OF_DISTRIBUTION, *_SYSTEMS, *CONFLICT_SOURCES)
}
