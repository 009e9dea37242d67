"""Tokenizers of every kind, and what the tokenizers library (pip install tokenizers) makes of random strings.

    python generate.py                      the small vocabularies that are checked in: 300 strings by three of them,
                                            120 by the others. A vocabulary that is there is kept, since training breaks
                                            ties at random; delete its folder to make another
    python generate.py --full OUT [--gguf FOLDER] [--model FOLDER ...]
                                            2000 strings by the vocabularies of real models: those of llama.cpp's
                                            ggml-vocab-*.gguf files in FOLDER (needs the gguf package), and the
                                            tokenizer.json of model folders. The test reads OUT from
                                            $QTOOL_TOKENIZER_GOLDENS
    python generate.py --check FOLDER       loads FOLDER/*/tokenizer.json and compares with FOLDER/*/ids.json, a map
                                            from strings to ids
"""
import argparse
import base64
import glob
import json
import os
import random
import shutil

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"]

TEXT = """
The lighthouse keeper wrote everything down twice: once in ink, for the ministry, and once in pencil, for himself.
On the 14th of October 1897 the wind came from the north-east at 31 knots; by midnight it had turned, and he hadn't slept.
"You'll see," said his sister, who'd rowed across with bread and coal, "they're going to put in a machine, and then what'll you do?"
He didn't answer. He'd been counting the beam's turns since five o'clock, and he wasn't going to lose count now.

A loaf needs 500 g of flour, 350 ml of water, 10 g of salt and patience. Mix, wait 30 minutes, fold; wait again, fold again.
If the dough sticks, wet your hands; if it doesn't rise, it's too cold or you're too early. Bake at 240 degrees for 35-40 minutes.

def area(width, height=1.0):
    # negative sizes make no sense
    if width < 0 or height < 0:
        raise ValueError(f"size {width} x {height}")
    return width * height

for (int i = 0; i < n; i++) { sum += values[i] * weights[i]; }
SELECT name, COUNT(*) FROM visitors WHERE year >= 2019 GROUP BY name ORDER BY 2 DESC;
https://example.org/path/to/page?query=two+words&lang=en#part-3   user.name@example.com   C:\\Temp\\new_file.txt

Il était une fois, près de la forêt, un garçon très têtu; où est-il allé? Übermorgen läuft der Bär über die große Straße.
Señor Núñez comió piñas mañana por la tarde. Žluťoučký kůň úpěl ďábelské ódy. Đường phố Hà Nội rất đông người.
Старый мост стоит над рекой, и никто не помнит, кто его построил. Το παλιό γεφύρι στέκει πάνω από το ποτάμι.
昔の橋が川にかかっている。誰が作ったのか、誰も覚えていない。老橋還在河上，沒有人記得是誰建的。오래된 다리가 강 위에 서 있다.
الجسر القديم فوق النهر ولا أحد يتذكر من بناه. הגשר הישן עומד מעל הנהר. पुराना पुल नदी पर खड़ा है। สะพานเก่าอยู่เหนือแม่น้ำ

Numbers: 0 1 22 333 4444 55555 3.14159 -273.15 6.022e23 0xFF 1,000,000 50% $19.99 €20 £7 ¥900 №5 ½ ¾ x² ⅷ ٣٤٥ १२३
Smileys: 🙂 😂 ❤️ 👍🏽 👩‍👩‍👧‍👦 🇫🇷 🇯🇵 ☃️ ✓ → ∑ ≤ ∞ … — – “quoted” ‘single’ «guillemets» ¿why? ¡so!
"""

WORDS = sorted(set(TEXT.split())) + """it's she'll they've I'm don't we'd IT'S She'LL I'M o'clock 's 'LL 'Re 'ſ x'Ve 'd'D naïve Zürich שלום مرحبا नमस्ते สวัสดี 日本語 中文字符 한국어 각
CamelCase foo_bar http://a.b/c?d=%20 [1] {2} <s> </s> <unk> <|end|> <|end|>x a<s>b [CLS] [SEP] [MASK] <mask> <tool> <tool>s <pad> ##ing <0x0A> ▁ ▁a ａｂ！ ΑΒΓς ǅ İstanbul ﬁn ﬃ Å Å e\u0301
a\u0308\u0323 q\u0307\u0323 u\u0306x \u016dx 각 각 ｶﾞ 👩🏿‍🚒 🏳️‍🌈 🧑🏻‍🤝‍🧑🏾 👍🏿👍🏻 🇩🇪🇦🇹 1️⃣ Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯ ｡ 、 。 ． ！ ᚠᛇᚻ 𝔘𝔫𝔦 𐍈 𠜎𠜱 ௵ ߊ ۩ ꙮ ๑""".split()
SPACES = [" "] * 6 + ["  ", "   ", " " * 17, "\t", "\t\t\t", "\n", "\n\n", "\n\n\n\n", "\r\n", " \n ", "\n \t", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "", "", "", ""]
ODD = ["\x00", "\x01", "\x1b[0m", "\x1f", "\x7f", "\u0085", "\u200b", "\u200d", "\ufeff", "\ufffd", "\u00ad", "\u061c", "\ue000", "\U000e0001", "\u0378", "\U0010ffff", "''", "-1", "+", "$", "`", "^~|", "...", "!!!", "?!", "--", "==", "\\n"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xe2\x28\xa1", b"\xf0\x90\x80", b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x9f\x98\xff"]
# Of characters that Unicode 8 knows already: the library's BERT steps are of that version.
RANGES = [(32, 127), (32, 127), (0xa0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x5be, 0x61b), (0x61e, 0x6ff), (0x900, 0x980), (0x1100, 0x1200), (0x2000, 0x2070), (0x2150, 0x2190), (0x3040, 0x3100), (0x4e00, 0x9fff), (0xac00, 0xd7a4), (0xfb00, 0xfb50), (0xff00, 0xffef), (0x1d400, 0x1d500), (0x1f300, 0x1f650)]


def overlaps(count, seed):
    """Texts in which tokens of added() overlap and touch."""
    r = random.Random(seed)
    parts = ["<tool>", "tool>", "<to", "<", "[S]", "[L]", "[W]", "ab", "b c", "b", " ", "  ", "\n", "a", "c", "1", "_", "é", "-", "<s>", "[LR]", "\u3000", "‿", "\u0301"]
    return ["".join(r.choice(parts) for _ in range(r.randint(2, 12))).encode() for _ in range(count)]


def strings(count, seed):
    r = random.Random(seed)
    out = [b"", b" ", b"  ", b"\n", b" a", b"a ", "▁".encode(), "▁a ▁".encode(), b"<s>", b"<s> a", b"a <s>", b"  <|end|>  x  "] + overlaps(40, seed)
    while len(out) < count:
        parts = []
        for _ in range(r.randint(1, 7)):
            kind = r.random()
            if kind < 0.66:
                parts.append(r.choice(WORDS).encode())
            elif kind < 0.76:
                parts.append("".join(chr(r.randrange(*r.choice(RANGES))) for _ in range(r.randint(1, 5))).encode())
            elif kind < 0.83:
                parts.append(str(r.randrange(10 ** r.randint(1, 9))).encode())
            elif kind < 0.93:
                parts.append(r.choice(ODD).encode())
            else:
                parts.append(r.choice(BROKEN))
            parts.append(r.choice(SPACES).encode())
        out.append(b"".join(parts))
    return out


def byte_level(splitter, normalizer=None, ignore_merges=False, size=600):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = splitter
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>", "<s>"], show_progress=False)
    t.train_from_iterator(TEXT.splitlines(True), trainer)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def split(*expressions):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in expressions] + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def more_tokens():
    """Added tokens of every kind."""
    t = byte_level(split(QWEN2), normalizers.NFC(), size=560)
    t.add_special_tokens([AddedToken("<pad>"), AddedToken("<mask>", lstrip=True, special=True), AddedToken("<｜end▁of｜>", normalized=False, special=True)])
    t.add_tokens([AddedToken("<tool>", single_word=True, normalized=False), AddedToken("[SEP]", rstrip=True, normalized=False), AddedToken("\u016dx", normalized=True), AddedToken("<|", normalized=False)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A <pad>", special_tokens=[("<s>", 1), ("<pad>", t.token_to_id("<pad>"))])
    return t


def added():
    """No merges, and added tokens that overlap."""
    t = Tokenizer(models.BPE({k: i for i, k in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    single, left, right = {"single_word": True}, {"lstrip": True}, {"rstrip": True}
    t.add_tokens([AddedToken(k, normalized=False, **flags) for k, flags in [
        ("<tool>", single), ("tool>", {}), ("<to", {}), ("[S]", right), ("[L]", left), ("[W]", {**single, **left, **right}), ("ab", single), ("b c", {})]])
    t.add_special_tokens([AddedToken("<s>", normalized=False), AddedToken("<s><s>", normalized=False), AddedToken("[LR]", normalized=False, **left, **right)])
    return t


def sentencepiece(byte_fallback, metaspace=None, cut=False, fuse=True, size=600):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=byte_fallback))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=metaspace, split=cut)
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if metaspace != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=metaspace)]) if cut else decoders.Sequence(steps)
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=size - 256 * byte_fallback, limit_alphabet=150, special_tokens=special, show_progress=False)
    t.train_from_iterator(TEXT.split(), trainer)
    model = json.loads(t.to_str())
    learned = [k for k, _ in sorted(model["model"]["vocab"].items(), key=lambda kv: kv[1]) if k not in special]
    order = special + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else []) + learned
    model["model"]["vocab"] = {k: i for i, k in enumerate(order)}
    t = Tokenizer.from_str(json.dumps(model))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def bert(vocab=None, normalizer=None):
    t = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]") if vocab else models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizer or normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if vocab is None:
        t.train_from_iterator(TEXT.splitlines(), trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False))
    else:
        t.add_special_tokens(special)
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                    special_tokens=[(k, t.token_to_id(k)) for k in ("[CLS]", "[SEP]")])
    t.decoder = decoders.WordPiece()
    return t


def small():
    makers = {
        "added": added,
        "gpt2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "gpt2-prefix": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "llama3": lambda: byte_level(split(LLAMA3), ignore_merges=True),
        "qwen2": more_tokens,
        "starcoder": lambda: byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
        "deepseek": lambda: byte_level(split(*DEEPSEEK)),
        "spm": lambda: sentencepiece(True),
        "spm-first": lambda: sentencepiece(True, "first"),
        "spm-cut": lambda: sentencepiece(True, "always", cut=True),
        "spm-never": lambda: sentencepiece(True, "never", fuse=False),
        "spm-unknown": lambda: sentencepiece(False),
        "spm-unknowns": lambda: sentencepiece(False, fuse=False),
        "bert": bert,
        "bert-cased": lambda: bert(normalizer=normalizers.BertNormalizer(lowercase=False)),
        "bert-accents": lambda: bert(normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])),
    }
    out = {}
    for name, make in makers.items():
        path = os.path.join(HERE, name, "tokenizer.json")
        out[name] = Tokenizer.from_file(path) if os.path.exists(path) else make()
    return out


def gguf_vocabularies(folder):
    from gguf import GGUFReader

    def fields(name):
        r = GGUFReader(os.path.join(folder, f"ggml-vocab-{name}.gguf"))
        texts = lambda key: [bytes(r.fields[key].parts[i]).decode() for i in r.fields[key].data]
        numbers = lambda key: [r.fields[key].parts[i].tolist()[0] for i in r.fields[key].data]
        return texts, numbers

    texts, _ = fields("gpt-2")
    tokens = texts("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in texts("tokenizer.ggml.merges")]
    gpt2 = Tokenizer(models.BPE({k: i for i, k in enumerate(tokens)}, merges))
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.decoder = decoders.ByteLevel()
    gpt2.add_special_tokens(["<|endoftext|>"])

    texts, numbers = fields("bert-bge")
    kinds = numbers("tokenizer.ggml.token_type")
    vocab = {}
    for i, k in enumerate(texts("tokenizer.ggml.tokens")):
        if k.startswith("▁"):
            k = k[1:]
        elif kinds[i] == 1 and not (k.startswith("[") and k.endswith("]")):
            k = "##" + k
        vocab[k] = i
    wordpiece = bert(vocab)

    texts, numbers = fields("llama-spm")
    tokens, scores, kinds = texts("tokenizer.ggml.tokens"), numbers("tokenizer.ggml.scores"), numbers("tokenizer.ggml.token_type")
    ids = {k: i for i, k in enumerate(tokens)}
    merges = []
    for i, k in enumerate(tokens):
        if kinds[i] == 1:
            for at in range(1, len(k)):
                if k[:at] in ids and k[at:] in ids:
                    merges.append((-scores[i], ids[k[:at]], ids[k[at:]], (k[:at], k[at:])))
    merges.sort(key=lambda m: m[:3])
    llama = Tokenizer(models.BPE(ids, [m[3] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    llama.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    llama.add_special_tokens([AddedToken(k, normalized=False) for k in ("<unk>", "<s>", "</s>")])
    llama.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return {"gpt-2": gpt2, "bert": wordpiece, "llama": llama}


def expected(t, texts, seed=3):
    around = t.encode("").ids
    with_special = [t.encode(s.decode(errors="replace")).ids for s in texts]
    plain = [t.encode(s.decode(errors="replace"), add_special_tokens=False).ids for s in texts]
    # What is put around a text does not depend on it: the test needs only what that is.
    prefix = around[:1] if plain[0] == [] else []
    for long, short in zip(with_special, plain):
        assert long == around[:len(prefix)] + short + around[len(prefix):], (long, short)
    # The library decodes tokens that are looked for in normalized text by their normalized form, and then does not
    # know them for special ones.
    raw = json.loads(t.to_str())
    for token in raw["added_tokens"]:
        token["normalized"] = False
    t = Tokenizer.from_str(json.dumps(raw))
    decoded = [t.decode(ids, skip_special_tokens=True) for ids in plain]
    kept = [t.decode(ids, skip_special_tokens=False) for ids in plain]
    # Random ids but for byte tokens, of which the library drops whole runs when one byte is wrong.
    r = random.Random(seed)
    usable = [i for k, i in t.get_vocab().items() if not k.startswith("<0x")]
    usable.sort()
    drawn = [[r.choice(usable) for _ in range(r.randint(1, 12))] for _ in range(len(texts) // 10)]
    return {"prefix": around[:len(prefix)], "suffix": around[len(prefix):], "ids": plain,
            # Only what differs: the decoding from the text, that with special tokens from the one without.
            "decoded": {str(i): s for i, s in enumerate(decoded) if s != texts[i].decode(errors="replace")},
            "kept": {str(i): s for i, s in enumerate(kept) if s != decoded[i]},
            "drawn": drawn, "drawnDecoded": [t.decode(ids, skip_special_tokens=False) for ids in drawn]}


def compact(data):
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def check(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*", "tokenizer.json"))):
        t = Tokenizer.from_file(path)
        with open(os.path.join(os.path.dirname(path), "ids.json")) as f:
            want = json.load(f)
        wrong = [s for s in want if t.encode(s).ids != want[s]]
        print(os.path.dirname(path), len(want), "texts,", len(wrong), "differ", [(s, want[s], t.encode(s).ids) for s in wrong[:2]])


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--full", metavar="OUT")
    a.add_argument("--gguf", metavar="FOLDER")
    a.add_argument("--model", metavar="FOLDER", action="append", default=[])
    a.add_argument("--check", metavar="FOLDER")
    a = a.parse_args()
    if a.check:
        return check(a.check)
    out, count, tokenizers = HERE, 300, {}
    if a.full:
        out, count = a.full, 2000
        if a.gguf:
            tokenizers = gguf_vocabularies(a.gguf)
        for folder in a.model:
            name = os.path.basename(os.path.normpath(folder))
            tokenizers[name] = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    else:
        tokenizers = small()
    texts = strings(count, seed=11)
    golden = {"texts": [base64.b64encode(s).decode() for s in texts], "vocabularies": {}}
    for name, t in tokenizers.items():
        os.makedirs(os.path.join(out, name), exist_ok=True)
        with open(os.path.join(out, name, "tokenizer.json"), "w") as f:
            f.write(compact(json.loads(t.to_str())))
        some = texts if a.full or name in ("gpt2", "spm", "bert") else texts[:120]
        golden["vocabularies"][name] = expected(t, some)
    for folder in a.model:
        shutil.copyfile(os.path.join(folder, "tokenizer_config.json"), os.path.join(out, os.path.basename(os.path.normpath(folder)), "tokenizer_config.json"))
    with open(os.path.join(out, "golden.json"), "w") as f:
        f.write(compact(golden))
    print(len(texts), "texts,", {k: sum(map(len, v["ids"])) for k, v in golden["vocabularies"].items()})


if __name__ == "__main__":
    main()
