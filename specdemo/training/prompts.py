"""Instructions of the kinds people give, made by a seeded generator and from the target's own answers.

Nothing here is taken from a data set: sums, sentences to translate and coding tasks are put together from small word
lists, and the passages to summarise or to ask about are answers the target wrote earlier.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    """One user turn. With `opening` set, `text` is only its beginning and the target finishes it."""

    kind: str
    text: str
    opening: bool = False


NAMES = (
    "Anna Ben Carla David Emma Felix Grace Henry Isla Jack Karen Liam Maria Noah Olivia Paul Rosa Sam Tina Victor "
    "Wendy Yusuf Zoe Ahmed Bella Chloe Dylan Ethan Fatima George Hannah Ivan Julia Kevin Lucy Mark Nina Oscar Peter "
    "Ruby"
).split()
THINGS = (
    "apples books pencils marbles stickers cookies oranges cards balloons flowers eggs cupcakes shells coins candles "
    "stamps toys tickets bottles bricks muffins lemons shirts puzzles seeds fish chairs boxes photos sandwiches"
).split()
PLACES = ("shop", "farm", "school", "market", "library", "bakery", "garden", "office", "factory", "museum")
TOPICS = (
    "solar power|a lost dog|the French Revolution|healthy breakfasts|black holes|a haunted lighthouse|remote work|"
    "learning the piano|ocean pollution|chess|a first day at school|electric cars|the Roman Empire|sleep|"
    "artificial intelligence|a trip to Japan|bees|budgeting|friendship|volcanoes|a surprise party|the human heart|"
    "climate change|football|bread baking|photosynthesis|job interviews|a time machine|gravity|jazz|gardening|"
    "the stock market|rainforests|public speaking|a talking cat|vaccines|the Great Wall of China|running a marathon|"
    "social media|coffee|dinosaurs|saving water|a small village|space travel|poetry|cyber security|inflation|"
    "camping|a lonely robot|Shakespeare|vitamins|tea|the moon landing|recycling|mountains|painting|online learning"
).split("|")
SUBJECTS = (
    "the Titanic|the Olympic Games|the Eiffel Tower|world war two|Harry Potter|the Lion King|the Beatles|the super "
    "bowl|"
    "the human brain|the Declaration of Independence|Star Wars|the Nobel Prize|the world cup|Game of Thrones|"
    "the Mississippi River|the telephone|the Simpsons|the Supreme Court|Mount Everest|the Walking Dead|the Berlin "
    "Wall|"
    "the guitar|penicillin|Grey's Anatomy|the Black Panther|the Statue of Liberty|the periodic table|the liver|"
    "the Cold War|Friends|the Sahara|the Panama Canal|Batman|the Constitution|Romeo and Juliet|the euro|the Amazon"
).split("|")


def _sum(rng: random.Random) -> str:
    a, b, c = rng.sample(NAMES, 3)
    thing, other = rng.sample(THINGS, 2)
    n, m, k = rng.randint(2, 60), rng.randint(2, 20), rng.randint(2, 9)
    percent = rng.choice((10, 20, 25, 30, 40, 50, 60, 75))
    place = rng.choice(PLACES)
    forms = (
        f"{a} has {n} {thing}. {b} gives {a} {m} more {thing}, and then {a} loses {k}. "
        f"How many {thing} does {a} have now?",
        f"{a} has {k} times as many {thing} as {b}. {b} has {m} {thing} and {c} has {n} more than {b}. "
        f"How many {thing} do they have altogether?",
        f"A {place} sells {thing} for ${k} each and {other} for ${m} each. {a} buys {m} {thing} and {k} {other}. "
        f"How much does {a} pay in dollars?",
        f"{a} can make {k} {thing} in an hour. If {a} works {m} hours a day for {rng.randint(2, 7)} days, how many "
        f"{thing} "
        f"does {a} make?",
        f"A {place} had {n * 10} {thing}. {percent}% of them were sold on Monday and {m} more on Tuesday. "
        f"How many {thing} are left?",
        f"{a} is {k} years older than {b}. {c} is twice as old as {b}. If {b} is {m} years old, what is the sum of "
        f"their ages?",
        f"A pair of shoes costs ${n * 5}. {a} gets a discount of {percent}% and pays with ${n * 5}. How much change "
        f"does {a} get?",
        f"If {k} {thing} weigh {k * m} grams, how many grams do {n} {thing} weigh?",
        f"{a} reads {m} pages on the first day, twice as many on the second day and {n} on the third day. "
        f"How many pages did {a} read in total?",
        f"There are {n} {thing} in a box. {a} takes half of them, {b} takes {k}, and the rest are shared equally by "
        f"{m} children. How many {thing} does each child get?",
        f"{a} earns ${m} an hour. She works {k} hours a day, 5 days a week, and spends {percent}% of what she earns. "
        f"How much does she save in {rng.randint(2, 8)} weeks?",
        f"A train travels at {n + 20} miles per hour for {k} hours and then at {n + 40} miles per hour for {m} "
        f"hours. "
        f"How far does it travel?",
        f"What is {rng.randint(11, 999)} {rng.choice(('plus', 'minus', 'times', '+', '*', 'divided by'))} {n}?",
        f"Solve for x: {k}x + {m} = {k * rng.randint(2, 20) + m}.",
        f"{a} bought {n} {thing} at the {place} and {b} bought {m} fewer. {c} bought {k} times as many {thing} as "
        f"{b}. "
        f"How many more {thing} did {c} buy than {a}?",
        f"The area of a rectangle is {k * m} square feet and one side is {k} feet long. What is its perimeter?",
    )
    return rng.choice(forms)


_GERMAN = {
    "when": ["Am Montag", "Nach dem Spiel", "In der Nacht", "Seit 2012", "Im Herbst", "Für viele Menschen"],
    "who": (
        "Die Polizei|Der Minister|Die Bundesregierung|Der Bürgermeister|Eine 35-jährige Frau|Der Verein|Die Stadt "
        "Berlin|"
        "Ein Sprecher der Firma|Die Europäische Union|Der Präsident|Die Mannschaft|Ein junger Mann aus Hamburg|Der "
        "Vorsitzende|"
        "Das Unternehmen|Die Lehrerin|Der Trainer|Die Gemeinde|Der Fahrer|Unsere Familie|Das Gericht|Die Feuerwehr|"
        "Der Künstler|Die Direktorin des Museums|Ein 52 Jahre alter Arzt|Die Opposition|Der Landrat|Das Ministerium"
    ).split("|"),
    "did": (
        "hat am Mittwoch|hat nach Angaben der Zeitung|will im nächsten Jahr|konnte gestern Abend|hat in München|"
        "möchte schon lange|"
        "musste am Dienstag|hat gemeinsam mit den Bürgern|soll bis Ende August|hatte zuvor in Frankfurt|wird in "
        "dieser Woche|"
        "hat vor dem Landgericht|durfte nach dem Unfall|hat seit mehr als zehn Jahren|kann nach eigenen Worten"
    ).split("|"),
    "what": (
        "ein neues Gesetz|die Ergebnisse der Untersuchung|den Bau einer Schule|mehr als 200 Besucher|die alte Brücke|"
        "eine Ausstellung über die Geschichte der Region|den ersten Platz|die Preise für Strom und Gas|einen "
        "wichtigen Vertrag|"
        "die Arbeit der Kinder|das Spiel gegen den Nachbarn|drei Millionen Euro|die Rechte der Arbeitnehmer|einen "
        "Hund|"
        "das Haus am Fluss|die Verhandlungen mit der Regierung|viele Fragen zur Sicherheit|den Zug nach Köln"
    ).split("|"),
    "verb": (
        "vorgestellt|verkauft|eröffnet|gewonnen|geplant|verloren|kritisiert|besucht|gefunden|unterstützt|beendet|"
        "erklärt|bezahlt|verhindert|geändert|begonnen|gesehen|abgelehnt"
    ).split("|"),
    "tail": (
        "| , weil das Wetter schlecht war| , sagte er am Freitag| , obwohl viele Menschen dagegen waren| , teilte "
        "die Behörde mit|"
        " , um die Kosten zu senken| und wurde dabei leicht verletzt| , wie die Nachrichtenagentur berichtete|"
        " , damit die Straße wieder frei wird| , aber niemand wusste davon| und bedankte sich bei allen Helfern| , "
        "so Müller"
    ).split("|"),
}
_FRENCH = (
    "Le gouvernement a annoncé une nouvelle loi sur l'énergie.|Ma sœur habite dans une petite maison près de la mer.|"
    "Il fait froid ce matin et les enfants sont restés à l'école.|Le musée ouvre ses portes tous les jours sauf le "
    "lundi.|"
    "Nous avons mangé du pain et du fromage avec nos amis.|Elle voudrait apprendre la musique cet été.|"
    "Le train pour Paris part à huit heures du soir.|Les joueurs ont gagné le match contre leur rival."
).split("|")
_SPANISH = (
    "El presidente presentó un nuevo plan para la economía.|Mi hermano trabaja en un hospital cerca de la playa.|"
    "Mañana vamos a visitar el mercado con nuestros abuelos.|La profesora explicó la historia de la ciudad.|"
    "El equipo ganó el partido después de una larga noche.|Me gusta leer libros cuando llueve.|"
    "Los precios de la comida han subido este año.|El tren llega a Madrid a las nueve."
).split("|")
_ENGLISH = (
    "The weather is nice today.|Where is the train station?|I would like a cup of coffee, please.|"
    "My brother lives in a small house near the river.|The government announced a new law on Monday.|How much does "
    "this cost?"
).split("|")


def _german(rng: random.Random) -> str:
    who, did, what, verb, tail = (rng.choice(_GERMAN[part]) for part in ("who", "did", "what", "verb", "tail"))
    second = rng.choice(_GERMAN["what"])
    return rng.choice(
        (
            f"{who} {did} {what} {verb}{tail} .",
            f"{who} {did} {what} und {second} {verb}{tail} .",
            f"„ {who} {did} {what} {verb} “{rng.choice((' , sagte ' + rng.choice(NAMES), tail))} .",
            f"{rng.choice(_GERMAN['when'])} {did.split()[0]} {who[0].lower() + who[1:]} {what} {verb}{tail} .",
            f"{what[0].upper() + what[1:]} und {second}",
            f"{rng.choice(NAMES)} ist {rng.randint(18, 80)} Jahre alt ; {who[0].lower() + who[1:]} {did} {what} "
            f"{verb}{tail} .",
        )
    )


def _translation(rng: random.Random) -> str:
    language, sentence = rng.choices(
        (
            ("German", _german(rng)),
            ("French", rng.choice(_FRENCH)),
            ("Spanish", rng.choice(_SPANISH)),
        ),
        (8, 1, 1),
    )[0]
    return rng.choices(
        (
            f"Translate {language} to English: {sentence}",
            f"Translate the following sentence from {language} to English: {sentence}",
            f"Translate into English: {sentence}",
            f'How do you say "{rng.choice(_ENGLISH)}" in {language}?',
        ),
        (9, 1, 1, 1),
    )[0]


_JOBS = (
    "reverses a string|checks whether a number is prime|counts the vowels in a text|finds the largest number in a "
    "list|"
    "sorts a list of numbers|computes the factorial of a number|reads a file and counts its words|merges two sorted "
    "lists|"
    "finds the common elements of two arrays|removes duplicates from a list|checks whether a word is a palindrome|"
    "computes the Fibonacci numbers|converts Celsius to Fahrenheit|finds the shortest path in a graph|searches a "
    "sorted array|"
    "parses a date|validates an email address|finds the median of a list|counts how often each word occurs|"
    "transposes a matrix"
).split("|")


def _code(rng: random.Random) -> str:
    job, language = (
        rng.choice(_JOBS),
        rng.choice(("Python", "Python", "Python", "JavaScript", "C++", "Java", "SQL", "HTML")),
    )
    return rng.choice(
        (
            f"Write a {language} function that {job}.",
            f"Implement a program in {language} that {job}, and explain how it works.",
            f"How would you write code that {job}? Show an example.",
            f"Explain step by step how an algorithm that {job} works and give its time complexity.",
            f"Write a {language} program that {job} without using any built-in functions.",
            f"Develop a {language} program that {job} and prints the result.",
        )
    )


def _writing(rng: random.Random) -> str:
    topic, name = rng.choice(TOPICS), rng.choice(NAMES)
    role = rng.choice(
        ("a doctor", "a pirate", "a teacher", "a chef", "a detective", "a poet", "a robot", "a coach", "a king")
    )
    forms = (
        f"Write a short email to {name} about {topic}. Keep it polite and to the point.",
        f"Compose an engaging blog post about {topic}, highlighting what matters most.",
        f"Write a descriptive paragraph about {topic}, using sounds and smells to create an immersive experience.",
        f"Pretend to be {role} and answer this question: what do you think about {topic}?",
        f"Imagine you are {role}. Explain {topic} to a ten-year-old in simple words.",
        f"Write the opening paragraph of a story about {topic}. The main character is called {name}.",
        f"Could you write a captivating short story that begins with the sentence: {name} never believed in {topic}.",
        f"Give me five ideas for a talk about {topic} and explain each in one sentence.",
        f"What are the advantages and disadvantages of {topic}? Answer in bullet points.",
        f"Draft a speech about {topic} for a school assembly.",
        f"Suppose you are {role} and a friend asks for advice about {topic}. What do you say?",
        f'Describe {topic} in three short paragraphs. Do not use the word "very".',
        f"Write a poem about {topic} in four lines.",
        f"Explain the causes and effects of {topic} and give two examples.",
        f"Create an outline for a lesson about {topic} for grade {rng.randint(4, 12)} students.",
        f"Which is better, {topic} or {rng.choice(TOPICS)}? Explain your reasoning.",
    )
    return rng.choice(forms)


_QUESTION_OPENINGS = (
    "Who wrote|Who plays|When did|When was|Where is|Where was the|What is the name of|Who was the first|How many|"
    "What does|"
    "Who sings|Where did the|What kind of|Who invented|When does|Which country|Who is the|What year did|Where does|"
    "Name of the"
).split("|")


def _question(rng: random.Random, openings: bool) -> Instruction:
    subject = rng.choice(SUBJECTS)
    if rng.random() < 0.4 and openings:
        opening = rng.choice(_QUESTION_OPENINGS) + (" " + subject.lower() if rng.random() < 0.3 else "")
        return Instruction("question", opening, opening=True)
    forms = (
        f"Who invented {subject}?|When did {subject} start?|Where is {subject} located?|Who wrote {subject}?|"
        f"What is {subject} known for?|How long did it take to build {subject}?|Who played the lead in {subject}?|"
        f"When was {subject} first seen?|Where does the name of {subject} come from?|How many people know {subject}?|"
        f"Who won {subject} in {rng.randint(1960, 2020)}?|What is the meaning of {subject}?|When did {subject} come "
        f"out?|"
        f"who is responsible for {subject.lower()}|what happened to {subject.lower()} in {rng.randint(1900, 2020)}?"
    ).split("|")
    return Instruction("question", rng.choice(forms))


def _passage(rng: random.Random, texts: Sequence[str], characters: int) -> str:
    """Up to `characters` of one to four of the target's own answers, cut at a word."""
    joint = rng.choice((" ", "\n"))
    passage = joint.join(" ".join(rng.choice(texts).split()) for _ in range(rng.randint(1, 4)))
    return passage[:characters].rsplit(" ", 1)[0]


def _summary(rng: random.Random, texts: Sequence[str]) -> str:
    passage = _passage(rng, texts, rng.randint(400, 2200))
    return rng.choices(
        (
            f"Summarize: {passage}",
            f"Summarize the following text: {passage}",
            f"{passage}\n\nSummarize the text above in two sentences.",
            f"Rewrite this in your own words:\n{passage}",
        ),
        (8, 2, 1, 1),
    )[0]


def _passage_question(rng: random.Random, texts: Sequence[str]) -> str:
    passage = _passage(rng, texts, rng.randint(500, 2200))
    # Ask about words of the passage itself, so that the answer is to be found in it.
    words = [word.strip('.,:;()"') for word in passage.split()]
    at = rng.randrange(max(1, len(words) - 4))
    phrase = " ".join(words[at : at + rng.randint(2, 4)])
    question = rng.choice(
        (
            f"What does the text say about {phrase}?|Who is responsible for {phrase.lower()}?|where does "
            f"{phrase.lower()} come from?|"
            f"What is {phrase.lower()}?|When did {phrase.lower()} begin?|How is {phrase.lower()} important?|Why "
            f"{phrase.lower()}?"
        ).split("|")
    )
    return rng.choices(
        (f"{passage}\n{question}", f"Answer the question using these passages.\n{passage}\nQuestion: {question}"),
        (4, 1),
    )[0]


MIX: dict[str, float] = {
    "translation": 0.20,
    "sum": 0.19,
    "summary": 0.15,
    "passage question": 0.15,
    "question": 0.12,
    "writing": 0.12,
    "code": 0.07,
}


def instruction(
    seed: int, index: int, texts: Sequence[str], *, mix: Mapping[str, float] = MIX, openings: bool = True
) -> Instruction:
    """The instruction number `index` of a stream.

    Args:
        seed, index: the same two always give the same instruction for the same `texts`.
        texts: answers of the target, from which passages are cut; none: the kinds that need one become writing tasks.
        mix: the share of each kind.
        openings: whether some questions may be left for the target to finish.
    """
    rng = random.Random(f"{seed}/{index}")
    kind = rng.choices(list(mix), list(mix.values()))[0]
    plain: dict[str, Callable[[random.Random], str]] = {
        "sum": _sum,
        "translation": _translation,
        "code": _code,
        "writing": _writing,
    }
    if kind == "question":
        return _question(rng, openings)
    if kind in ("summary", "passage question"):
        if not texts:
            return Instruction("writing", _writing(rng))
        make = _summary if kind == "summary" else _passage_question
        return Instruction(kind, make(rng, texts))
    return Instruction(kind, plain[kind](rng))
