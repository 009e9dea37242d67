"""Text from a small grammar, for a language model to learn: short reports in which earlier words decide later ones.

What a model can learn from it: verbs agree with their subject over what stands between them, pronouns follow a name's
gender, a list is repeated in its order or backwards, brackets close in the order in which they were opened, sums and
counts are right, days follow each other, and what someone owns, says or fears comes up again at the end.

    python grammar.py SEED CHARACTERS > text
"""
import random
import sys

SHE = ["Anna", "Berta", "Clara", "Dora", "Edith", "Frieda", "Greta", "Hilda"]
HE = ["Arno", "Bruno", "Carl", "David", "Emil", "Franz", "Georg", "Hugo"]
THINGS = ["lamp", "kettle", "map", "rope", "violin", "basket", "clock", "hammer", "ladder", "mirror", "saddle", "bell"]
COLOURS = ["red", "blue", "green", "grey", "white", "black"]
PLACES = ["harbour", "mill", "market", "chapel", "quarry", "station", "orchard", "bridge"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WEATHER = {"rain": "wet", "snow": "cold", "wind": "loud", "fog": "dim", "sun": "warm"}
TRADES = {"baker": "bread", "smith": "iron", "tailor": "cloth", "fisher": "nets", "mason": "stone", "farmer": "grain"}
VERBS = [("carry", "carries"), ("watch", "watches"), ("follow", "follows"), ("greet", "greets"), ("fear", "fears"), ("know", "knows")]


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


class Writer:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def person(self):
        if self.r.random() < 0.5:
            return self.r.choice(SHE), "she", "her"
        return self.r.choice(HE), "he", "his"

    def thing(self):
        return self.r.choice(COLOURS) + " " + self.r.choice(THINGS)

    def agreement(self):
        one, many = self.r.choice(VERBS)
        subject, plural = self.r.choice([("the " + t, False) for t in TRADES] + [("the " + t + "s", True) for t in TRADES])
        if self.r.random() < 0.6:
            near = self.r.choice(list(TRADES))
            subject += " near the " + self.r.choice([near, near + "s"])
        if self.r.random() < 0.4:
            subject += " at the " + self.r.choice(PLACES)
        verb = many if not plural else one
        return f"{subject[0].upper()}{subject[1:]} {verb} the {self.thing()}."

    def ownership(self):
        name, she, her = self.person()
        thing, place, day = self.thing(), self.r.choice(PLACES), self.r.randrange(7)
        days = self.r.randint(1, 3)
        middle = self.r.choice([self.agreement(), self.weather(), self.total()])
        return (f"On {DAYS[day]} {name} took {her} {thing} to the {place}. {middle} {NUMBERS[days].capitalize()} "
                f"day{'s' if days > 1 else ''} later, on {DAYS[(day + days) % 7]}, {she} came back from the {place} with {her} {thing}.")

    def weather(self):
        kind = self.r.choice(list(WEATHER))
        return f"There was {kind} at the {self.r.choice(PLACES)}, so everything was {WEATHER[kind]}."

    def total(self):
        a, b = self.r.randint(1, 6), self.r.randint(1, 6)
        thing = self.r.choice(THINGS)
        plural = lambda n: f"{NUMBERS[n]} {thing}{'s' if n != 1 else ''}"
        return f"{plural(a).capitalize()} and {plural(b)} make {plural(a + b)}."

    def listing(self):
        items = self.r.sample(THINGS, self.r.randint(3, 5))
        name, she, _ = self.person()
        said = ", ".join(items[:-1]) + " and " + items[-1]
        if self.r.random() < 0.5:
            return f"{name} wrote down: {said}. Then {she} read it aloud: {said}."
        back = items[::-1]
        return f"{name} wrote down: {said}. Backwards {she} read: {', '.join(back[:-1])} and {back[-1]}."

    def brackets(self, depth=0):
        if depth >= 4 or self.r.random() < 0.25 + 0.15 * depth:
            return self.r.choice(COLOURS)
        left, right = self.r.choice([("(", ")"), ("[", "]"), ("{", "}")])
        inner = " ".join(self.brackets(depth + 1) for _ in range(self.r.randint(1, 2)))
        return f"{left}{self.r.choice(COLOURS)} {inner}{right}"

    def speech(self):
        name, she, her = self.person()
        other, _, _ = self.person()
        trade = self.r.choice(list(TRADES))
        return (f'{name} is {article(trade)}. "I sell {TRADES[trade]}," {she} says to {other}, "because I am {article(trade)}." '
                f'{other} buys {her} {TRADES[trade]}.')

    def counting(self):
        start = self.r.randint(0, 8)
        end = min(start + self.r.randint(2, 4), 12)
        name, she, _ = self.person()
        up = self.r.random() < 0.5
        run = NUMBERS[start:end + 1] if up else NUMBERS[start:end + 1][::-1]
        return f"{name} counts {'up' if up else 'down'} from {run[0]} to {run[-1]}: {', '.join(run)}."

    def paragraph(self):
        kinds = [self.agreement, self.ownership, self.weather, self.total, self.listing, self.speech, self.counting]
        parts = [self.r.choice(kinds)() for _ in range(self.r.randint(3, 6))]
        if self.r.random() < 0.3:
            parts.append("Note: " + self.brackets() + ".")
        return " ".join(parts)

    def text(self, characters):
        out, size = [], 0
        while size < characters:
            out.append(self.paragraph())
            size += len(out[-1]) + 1
        return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.stdout.write(Writer(int(sys.argv[1])).text(int(sys.argv[2])))
