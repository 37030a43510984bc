package enginesim

import (
	"math"
	"strings"
	"testing"
)

func TestPresetsAreValid(t *testing.T) {
	names := Presets()
	if len(names) != 5 {
		t.Errorf("presets %v, want five", names)
	}
	for _, name := range names {
		if err := mustPreset(t, name).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnknownPresetNamesTheKnown(t *testing.T) {
	_, err := Preset("a4000")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range append(Presets(), `"a4000"`) {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestModelLenIsWhatTheCacheHolds(t *testing.T) {
	p := mustPreset(t, "a4000-qwen3-4b")
	if got, want := p.ModelLen(), 40_000-16; got != want {
		t.Errorf("ModelLen %d, want %d: one block is reserved", got, want)
	}
	p.MaxModelLen = 1000
	if got := p.ModelLen(); got != 1000 {
		t.Errorf("ModelLen %d, want 1000", got)
	}
	if p.CheckPrompt(999) != nil || p.CheckPrompt(1000) == nil {
		t.Error("a prompt must leave room for one token")
	}
}

func TestValidateNamesThingValueAndRemedy(t *testing.T) {
	for want, spoil := range map[string]func(*Params){
		"KVTokens is 16: it must hold at least 2 blocks":           func(p *Params) { p.KVTokens = 16 },
		"BlockTokens is 0: it must be at least 1":                  func(p *Params) { p.BlockTokens = 0 },
		"TokenBudget is -1":                                        func(p *Params) { p.TokenBudget = -1 },
		"MaxSequences is 0":                                        func(p *Params) { p.MaxSequences = 0 },
		"MaxModelLen is 30000: it must be between 2 and the 19984": func(p *Params) { p.MaxModelLen = 30_000 },
		"MaxModelLen is -5":                                        func(p *Params) { p.MaxModelLen = -5 },
		"OverheadMS is -1":                                         func(p *Params) { p.OverheadMS = -1 },
		"WeightsMS is NaN":                                         func(p *Params) { p.WeightsMS = math.NaN() },
		"LinearUSPerToken is +Inf":                                 func(p *Params) { p.LinearUSPerToken = math.Inf(1) },
		"AttentionNSPerTokenContext is -0.5":                       func(p *Params) { p.AttentionNSPerTokenContext = -0.5 },
		"KVReadUSPerContextToken is -2":                            func(p *Params) { p.KVReadUSPerContextToken = -2 },
		"HostKVGiB is -1":                                          func(p *Params) { p.HostKVGiB = -1 },
		"HostLinkGBPerS is 0: it must be above 0":                  func(p *Params) { p.HostLinkGBPerS = 0 },
		"KVBytesPerToken is 0":                                     func(p *Params) { p.KVBytesPerToken = 0 },
		"BytesPerToken is 8: it must be":                           func(p *Params) { p.BytesPerToken = 8 },
		`Balancer is "D": choose one of ["A"`:                      func(p *Params) { p.Balancer = "D" },
		"PublishCollectMS is -1":                                   func(p *Params) { p.PublishCollectMS = -1 },
		"PublishIntervalMS is -1":                                  func(p *Params) { p.PublishIntervalMS = -1 },
		"PublishIdleMS is 0: it must be above":                     func(p *Params) { p.PublishIdleMS = 0 },
	} {
		p := mustPreset(t, "tiny-fast")
		spoil(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestValidateReportsEverything(t *testing.T) {
	p := mustPreset(t, "tiny-fast")
	p.TokenBudget, p.OverheadMS = 0, -1
	err := p.Validate()
	for _, want := range []string{"TokenBudget", "OverheadMS"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}
