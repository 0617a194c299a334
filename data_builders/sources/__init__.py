"""One module per dataset: raw files, a model of a raw row, how a row becomes samples, and filters."""

from data_builders.boxes.source import BOXES
from data_builders.habit.source import HABIT
from data_builders.raw.source import Source
from data_builders.sources.conflict.cpi_facts import CPI_FACTS
from data_builders.sources.conflict.faitheval import FAITHEVAL, FAITHEVAL_INCONSISTENT, FAITHEVAL_UNANSWERABLE
from data_builders.sources.conflict.kre_squad import KRE_SQUAD
from data_builders.sources.conflict.matres import MATRES
from data_builders.sources.conflict.memotrap import MEMOTRAP
from data_builders.sources.conflict.pairs import CONFIQA, FAITHFULNESS_QA, NQ_SWAP
from data_builders.sources.conflict.revised import REVISED
from data_builders.sources.conflict.torque import TORQUE
from data_builders.sources.ood import ALPHANLI, SOCIALIQA, STORYCLOZE
from data_builders.sources.piper.cider import CIDER
from data_builders.sources.piper.cosmosqa import COSMOSQA
from data_builders.sources.piper.cqa import CQA
from data_builders.sources.piper.ecare import ECARE
from data_builders.sources.piper.ester import ESTER
from data_builders.sources.piper.ifqa import IFQA
from data_builders.sources.piper.mctaco import MCTACO
from data_builders.sources.piper.tempreason import TEMPREASON
from data_builders.sources.piper.timeqa import TIMEQA
from data_builders.sources.piper.tracie import TRACIE
from data_builders.sources.piper.wiqa import WIQA
from data_builders.sources.procedures import CREPE, OPENPI, OPENPI2
from data_builders.sources.strategyqa import STRATEGYQA

PIPER_SOURCES = (TEMPREASON, TIMEQA, TRACIE, MCTACO, CIDER, ESTER, CQA, COSMOSQA, ECARE, IFQA, WIQA)
FAITHEVAL_PARTS = (FAITHEVAL, FAITHEVAL_UNANSWERABLE, FAITHEVAL_INCONSISTENT)
CONFLICT_SOURCES = (MATRES, TORQUE, KRE_SQUAD, NQ_SWAP, *FAITHEVAL_PARTS, MEMOTRAP, CPI_FACTS, *CONFIQA)
_OTHERS = (FAITHFULNESS_QA, STORYCLOZE, SOCIALIQA, ALPHANLI, CREPE, STRATEGYQA, OPENPI, OPENPI2)
_ALL: tuple[Source, ...] = (BOXES, HABIT, REVISED, *PIPER_SOURCES, *_OTHERS, *CONFLICT_SOURCES)
SOURCES = {source.name: source for source in _ALL}
