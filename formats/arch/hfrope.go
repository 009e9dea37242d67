package arch

import (
	"fmt"
	"reflect"
	"slices"

	"qtool/formats/strictjson"
)

const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// ropeContext is what rotary parameters inherit from the top level of config.json.
type ropeContext struct {
	family  family
	theta   float64 // rope_theta of the top level, 0 when absent
	partial float64 // partial_rotary_factor of the top level, 0 when absent
	context int     // original_max_position_embeddings of the top level, 0 when absent
	// defaultTheta applies where neither level has a rope_theta.
	defaultTheta float64
}

// rope reads the rotary parameters. There are two spellings: rope_theta and rope_scaling beside
// the sizes, as transformers 4 writes them, and rope_parameters with everything in one object,
// as transformers 5 does; for gemma3 that object holds one object per layer type. A file with
// both must say the same in both.
func (o *object) rope(f family, c *Config) {
	x := ropeContext{
		family:       f,
		theta:        o.number("rope_theta", 0, refused),
		partial:      o.number("partial_rotary_factor", 0, 0),
		context:      o.size("original_max_position_embeddings", maxPositions, 0, 0),
		defaultTheta: 10000,
	}
	if f.name == Phi3 && x.context == 0 {
		x.context = 4096 // default of transformers' Phi3Config
	}
	scaling, hasScaling := o.nested("rope_scaling")
	parameters, hasParameters := o.nested("rope_parameters")
	if o.err != nil {
		return
	}
	read := (*object).ropeFlat
	if f.name == Gemma3Text {
		read = (*object).ropeByLayerType
		if hasParameters {
			x.theta = 0
		}
	}
	type result struct {
		global Rope
		local  *Rope
		rotary int
	}
	var found []result
	try := func(key string, v strictjson.Value) {
		var r result
		r.global, r.local, r.rotary = read(o, key, v, x, c)
		found = append(found, r)
	}
	if hasParameters {
		try("rope_parameters", parameters)
	}
	if hasScaling || !hasParameters {
		try("rope_scaling", scaling)
	}
	if o.err != nil {
		return
	}
	if len(found) == 2 && !reflect.DeepEqual(found[0], found[1]) {
		o.fail(scaling, "rope_scaling", "differs from rope_parameters")
		return
	}
	c.Rope, c.LocalRope, c.RotaryDim = found[0].global, found[0].local, found[0].rotary
}

// nested returns an object that may be absent, null or empty, which all mean the same.
func (o *object) nested(key string) (strictjson.Value, bool) {
	v, ok := o.get(key)
	if !ok || v.Kind == strictjson.Null {
		return strictjson.Value{}, false
	}
	if v.Kind != strictjson.Object {
		o.fail(v, key, "expected an object, found %s", kindName(v))
		return strictjson.Value{}, false
	}
	return v, len(v.Members) > 0
}

// ropeFlat reads one set of parameters for all layers.
func (o *object) ropeFlat(key string, v strictjson.Value, x ropeContext, c *Config) (Rope, *Rope, int) {
	r, rotary := o.ropeObject(key, v, x, c)
	return r, nil, rotary
}

// ropeByLayerType reads gemma3's parameters: in rope_parameters one object per layer type; in the
// older spelling rope_theta and rope_scaling for full attention, rope_local_base_freq for
// sliding.
func (o *object) ropeByLayerType(key string, v strictjson.Value, x ropeContext, c *Config) (Rope, *Rope, int) {
	global, local := x, x
	global.defaultTheta = 1000000
	if key == "rope_scaling" {
		local.theta = o.number("rope_local_base_freq", 0, refused)
		if _, ok := v.Get("rope_type"); !ok && v.Kind == strictjson.Object && len(v.Members) > 0 {
			// transformers 5 ignores the key "type" here, version 4 reads it.
			o.refuse(v, key, "has no rope_type, and readers differ on what that means for gemma3_text")
		}
		g, rotary := o.ropeObject(key, v, global, c)
		l, _ := o.ropeObject(key, strictjson.Value{}, local, c)
		return g, &l, rotary
	}
	for _, m := range v.Members {
		if m.Key != fullAttention && m.Key != slidingAttention {
			o.refuse(m.Value, key+"."+m.Key, "is not a layer type of %s", Gemma3Text)
		}
	}
	parent := &object{file: o.file, prefix: o.prefix + key + ".", value: v, err: o.err}
	full, _ := parent.nested(fullAttention)
	sliding, _ := parent.nested(slidingAttention)
	g, rotary := parent.ropeObject(fullAttention, full, global, c)
	l, _ := parent.ropeObject(slidingAttention, sliding, local, c)
	o.err = parent.err
	return g, &l, rotary
}

// ropeKinds maps rope_type to a kind and to the keys that the kind reads besides those that all
// kinds have.
var ropeKinds = map[string]struct {
	kind RopeKind
	keys []string
}{
	"default":  {RopeDefault, nil},
	"linear":   {RopeLinear, []string{"factor"}},
	"llama3":   {RopeLlama3, []string{"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}},
	"yarn":     {RopeYarn, []string{"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}},
	"longrope": {RopeLongrope, []string{"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"}},
}

// ropeCommonKeys may stand in the object of any kind.
var ropeCommonKeys = []string{"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}

// ropeObject reads one set of rotary parameters; v may be the zero Value for the default kind.
// It returns the number of rotated elements of a head as well, since an object may carry the
// factor that decides it.
func (o *object) ropeObject(key string, v strictjson.Value, x ropeContext, c *Config) (Rope, int) {
	p := &object{file: o.file, prefix: o.prefix + key + ".", value: v, err: o.err}
	defer func() { o.err = p.err }()
	name := p.ropeType(x.family)
	entry, ok := ropeKinds[name]
	if !ok && p.err == nil {
		p.refuse(v, "rope_type", "%q is not supported, supported are default, linear, llama3, longrope and yarn", name)
	}
	for _, m := range v.Members {
		switch {
		case slices.Contains(ropeCommonKeys, m.Key) || slices.Contains(entry.keys, m.Key):
		case ropeKeyOfAnyKind(m.Key):
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s%s has no effect on rope_type %q", p.prefix, m.Key, name))
		default:
			p.refuse(m.Value, m.Key, "is not a parameter of rope_type %q that qtool knows", name)
		}
	}
	r := Rope{Kind: entry.kind, Theta: p.inherited("rope_theta", x.theta, x.defaultTheta)}
	rotary := c.HeadDim
	partial := p.inherited("partial_rotary_factor", x.partial, 1)
	switch {
	case partial == 1 || p.err != nil:
	case x.family.name != Phi3:
		p.refuse(v, "partial_rotary_factor", "is %v, model type %q rotates whole heads", partial, x.family.name)
	default:
		rotary = int(float64(c.HeadDim) * partial)
	}
	if r.Kind == RopeDefault || p.err != nil {
		return r, rotary
	}
	if r.Kind != RopeLinear {
		r.OriginalContext = int(p.inherited("original_max_position_embeddings", float64(x.context), float64(c.MaxPositions)))
	}
	p.ropeKind(&r, c)
	if p.err == nil {
		if err := r.check(rotary); err != nil {
			p.fail(v, "", "%s", err)
		}
	}
	return r, rotary
}

// ropeType reads rope_type, or type as files before transformers 4.43 call it.
func (p *object) ropeType(f family) string {
	name, old := p.text("rope_type", ""), p.text("type", "")
	switch {
	case name == "" && old == "":
		name = "default"
	case name == "":
		name = old
	}
	v, _ := p.get("type")
	if f.name == Phi3 {
		// Microsoft's first name for it; files of transformers 5 keep it beside the new one.
		if name == "su" {
			name = "longrope"
		}
		if old == "su" {
			old = "longrope"
		}
		if name != "default" && name != "longrope" {
			p.refuse(p.value, "rope_type", "%q is not supported for phi3, supported are default and longrope", name)
		}
	}
	if old != "" && old != name {
		p.fail(v, "type", "is %q, rope_type is %q", old, name)
	}
	return name
}

// inherited reads a positive number that the top level may give instead. Where both do they
// must agree, since readers differ on which one wins.
func (p *object) inherited(key string, above, absent float64) float64 {
	x := p.number(key, 0, 0)
	switch {
	case p.err != nil:
		return absent
	case x == 0 && above == 0:
		return absent
	case x == 0:
		return above
	case above != 0 && x != above:
		v, _ := p.get(key)
		p.fail(v, key, "is %v, the same key of the top level is %v", x, above)
	case key == "original_max_position_embeddings" && (x != float64(int(x)) || x > maxPositions):
		v, _ := p.get(key)
		p.fail(v, key, "is %v, expected an integer of 1 to %d", x, maxPositions)
	}
	return x
}

// ropeKind reads the keys of a kind that stretches the context.
func (p *object) ropeKind(r *Rope, c *Config) {
	stretch := float64(c.MaxPositions) / float64(r.OriginalContext)
	switch r.Kind {
	case RopeLinear:
		r.Factor = p.number("factor", refused, refused)
	case RopeLlama3:
		r.Factor = p.number("factor", refused, refused)
		r.LowFreqFactor = p.number("low_freq_factor", refused, refused)
		r.HighFreqFactor = p.number("high_freq_factor", refused, refused)
	case RopeYarn:
		r.Factor = p.number("factor", refused, stretch)
		r.AttentionFactor = p.number("attention_factor", 0, 0)
		r.BetaFast = p.number("beta_fast", 32, 32)
		r.BetaSlow = p.number("beta_slow", 1, 1)
		r.MScale = p.zeroOrMore("mscale")
		r.MScaleAllDim = p.zeroOrMore("mscale_all_dim")
		r.Truncate = true
		if v, ok := p.get("truncate"); ok && v.Kind != strictjson.Null {
			r.Truncate = p.flag("truncate", true)
			if !r.Truncate && c.Architecture == Gemma3Text {
				p.refuse(v, "truncate", "false is not supported for parameters by layer type")
			}
		}
	case RopeLongrope:
		r.Factor = p.number("factor", stretch, stretch)
		r.AttentionFactor = p.number("attention_factor", 0, 0)
		r.ShortFactors = p.numbers("short_factor")
		r.LongFactors = p.numbers("long_factor")
	}
}

// zeroOrMore reads a number for which absent, null and 0 mean the same.
func (p *object) zeroOrMore(key string) float64 {
	v, ok := p.get(key)
	if !ok || v.Kind == strictjson.Null {
		return 0
	}
	x, ok := p.float(v, key)
	if ok && x < 0 {
		p.fail(v, key, "is %v, expected a number of at least 0", x)
	}
	return x
}

// ropeKeyOfAnyKind reports whether some kind reads the key.
func ropeKeyOfAnyKind(key string) bool {
	for _, entry := range ropeKinds {
		if slices.Contains(entry.keys, key) {
			return true
		}
	}
	return false
}
