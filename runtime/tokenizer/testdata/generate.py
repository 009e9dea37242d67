"""Tokenizers of every kind, and what the tokenizers library (pip install tokenizers) makes of random strings.

    python generate.py                      the small vocabularies that are checked in, 250 strings
    python generate.py --full GGUFS OUT     2000 strings by the vocabularies of real models, read from the
                                            ggml-vocab-*.gguf files of llama.cpp in folder GGUFS (needs the gguf
                                            package); the test reads OUT from $QTOOL_TOKENIZER_GOLDENS
"""
import argparse
import base64
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

WORDS = """the a of and to in is it's she'll they've I'm don't we'd café naïve Zürich straße Ελλάδα Привет мир שלום مرحبا नमस्ते สวัสดี 日本語 中文字符 한국어
tokens 1234 3.14159 12,345 ½ ٣٤ x² №5 Ⅻ foo_bar CamelCase http://example.org/a?b=c&d=%20 'quoted' "double" (brackets) [1] {2} <s> </s> <|end|> [CLS] [MASK] ##ing
ΑΒΓ ǅ İstanbul ﬁn ﬃ Å Å e\u0301 a\u0308\u0323 🙂 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ☃️ ✓ → ∑ ≤ € ™ … — – “ ” ‘ ’ ¿ ¡ ． ！ 、 。""".split()
SPACES = [" ", " ", " ", "  ", "   ", " " * 9, "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u2003", "\u3000", "", ""]
ODD = ["\x00", "\x01", "\x1f", "\x7f", "\u0085", "\u200b", "\u200d", "\ufeff", "\ufffd", "\u00ad", "\ue000", "\U000e0001", "\U0001d518", "\u0378", "'S", "'LL", "'Re", "'ſ", "''", "-1", "+", "$", "`", "^~|"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xe2\x28\xa1", b"\xf0\x90\x80"]


def strings(count, seed):
    r = random.Random(seed)
    out = [b"", b" ", b"  ", b"\n", b" a", b"a ", "▁".encode(), "▁a ▁".encode()]
    while len(out) < count:
        parts = []
        for _ in range(r.randint(1, 14)):
            kind = r.random()
            if kind < 0.62:
                parts.append(r.choice(WORDS).encode())
            elif kind < 0.72:
                parts.append("".join(chr(r.choice([r.randrange(32, 127), r.randrange(0xa0, 0x250), r.randrange(0x370, 0x530), r.randrange(0x4e00, 0x9fff), r.randrange(0x1f300, 0x1f650)]))
                                     for _ in range(r.randint(1, 6))).encode())
            elif kind < 0.80:
                parts.append(str(r.randrange(10 ** r.randint(1, 12))).encode())
            elif kind < 0.92:
                parts.append(r.choice(ODD).encode())
            else:
                parts.append(r.choice(BROKEN))
            parts.append(r.choice(SPACES).encode())
        out.append(b"".join(parts))
    return out


def corpus():
    r = random.Random(7)
    return [" ".join(r.choice(WORDS[:60]) for _ in range(20)) for _ in range(400)]


def byte_level(splitter, ignore_merges=False, size=500):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer = splitter
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"], show_progress=False)
    t.train_from_iterator(corpus(), trainer)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def split(expression):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece(byte_fallback, metaspace, size=420):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=metaspace, split=False)
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=size, limit_alphabet=90, special_tokens=special, show_progress=False)
    t.train_from_iterator([w for line in corpus() for w in line.split()], trainer)
    model = json.loads(t.to_str())
    learned = [k for k, _ in sorted(model["model"]["vocab"].items(), key=lambda kv: kv[1]) if k not in special]
    order = special + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else []) + learned
    model["model"]["vocab"] = {k: i for i, k in enumerate(order)}
    t = Tokenizer.from_str(json.dumps(model))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def bert(vocab=None, lowercase=True):
    if vocab is None:
        t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    else:
        t = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if vocab is None:
        t.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False))
    else:
        t.add_special_tokens(special)
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                    special_tokens=[(k, t.token_to_id(k)) for k in ("[CLS]", "[SEP]")])
    t.decoder = decoders.WordPiece()
    return t


def small():
    return {
        "gpt2": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "gpt2-prefix": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "llama3": byte_level(split(LLAMA3), ignore_merges=True),
        "qwen2": byte_level(split(QWEN2)),
        "spm": sentencepiece(True, None),
        "spm-first": sentencepiece(True, "first"),
        "spm-unknown": sentencepiece(False, None),
        "bert": bert(),
        "bert-cased": bert(lowercase=False),
    }


def real(folder):
    from gguf import GGUFReader

    def fields(name):
        r = GGUFReader(os.path.join(folder, f"ggml-vocab-{name}.gguf"))
        texts = lambda key: [bytes(r.fields[key].parts[i]).decode() for i in r.fields[key].data]
        numbers = lambda key: [r.fields[key].parts[i].tolist()[0] for i in r.fields[key].data]
        return r, texts, numbers

    _, texts, _ = fields("gpt-2")
    tokens = texts("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in texts("tokenizer.ggml.merges")]
    gpt2 = Tokenizer(models.BPE({k: i for i, k in enumerate(tokens)}, merges))
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.decoder = decoders.ByteLevel()
    gpt2.add_special_tokens(["<|endoftext|>"])

    _, texts, numbers = fields("bert-bge")
    kinds = numbers("tokenizer.ggml.token_type")
    vocab = {}
    for i, k in enumerate(texts("tokenizer.ggml.tokens")):
        if k.startswith("▁"):
            k = k[1:]
        elif kinds[i] == 1 and not (k.startswith("[") and k.endswith("]")):
            k = "##" + k
        vocab[k] = i
    wordpiece = bert(vocab)

    _, texts, numbers = fields("llama-spm")
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


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--full", nargs=2, metavar=("GGUFS", "OUT"))
    a = a.parse_args()
    out, count, tokenizers = (HERE, 250, small()) if not a.full else (a.full[1], 2000, real(a.full[0]))
    texts = strings(count, seed=11)
    golden = {"texts": [base64.b64encode(s).decode() for s in texts], "vocabularies": {}}
    for name, t in tokenizers.items():
        os.makedirs(os.path.join(out, name), exist_ok=True)
        with open(os.path.join(out, name, "tokenizer.json"), "w") as f:
            f.write(json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        plain = [t.encode(s.decode(errors="replace"), add_special_tokens=False).ids for s in texts]
        golden["vocabularies"][name] = {
            "prefix": t.encode("").ids, "ids": plain, "decoded": [t.decode(ids, skip_special_tokens=True) for ids in plain]}
    with open(os.path.join(out, "golden.json"), "w") as f:
        f.write(json.dumps(golden, separators=(",", ":")) + "\n")
    print(len(texts), "texts,", {k: sum(map(len, v["ids"])) for k, v in golden["vocabularies"].items()})


if __name__ == "__main__":
    main()
