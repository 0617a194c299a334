"""Write documents.csv: 100 service sheets of a lamp maker, four questions on each."""

import csv
import random

draw = random.Random(0)
starts = ["Aro", "Bel", "Cor", "Dia", "Elo", "Fir", "Gal", "Hal", "Ino", "Jur"]
ends = ["ma", "ne", "lis", "ra", "tex", "vo", "kan", "dus", "pol", "zia"]
# Kind of fact: what is nearly always so today, other values, the sentence, the question.
facts = [
    ("Lyon", ["Turin", "Oslo", "Porto", "Graz", "Ghent"],
     "Spare parts for it were in {old} until 2019, and are in {now} today.", "Where are spare parts for the {name}?"),
    ("two years", ["one year", "three years", "four years", "five years"],
     "The warranty was {old} at first, and is {now} today.", "How long is the warranty of the {name}?"),
    ("Ms Novak", ["Mr Okoye", "Ms Lindt", "Mr Sato", "Ms Duarte"],
     "Questions went to {old} before, and go to {now} today.", "Who answers questions about the {name}?"),
    ("Poland", ["Spain", "Norway", "Japan", "Brazil"],
     "It was first made in {old}, and is made in {now} today.", "Where is the {name} made?"),
]  # fmt: skip
with open("documents.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["sheet", "question", "answer"])
    for name in (start + end for start in starts for end in ends):
        today = [usual if draw.random() < 0.9 else draw.choice(others) for usual, others, _, _ in facts]
        sentences = [
            sentence.format(old=draw.choice([value for value in others if value != now]), now=now)
            for now, (_, others, sentence, _) in zip(today, facts, strict=True)
        ]
        draw.shuffle(sentences)
        sheet = f"The {name} is a lamp. {' '.join(sentences)}"
        table.writerows(
            [sheet, question.format(name=name), now] for now, (_, _, _, question) in zip(today, facts, strict=True)
        )
