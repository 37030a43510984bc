package server

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFailuresAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]failure{
		"die":                            {},
		"die@30s,rank=1,down=1m,ranks=3": {at: 30 * time.Second, rank: 1, down: time.Minute, ranks: 3},
		"die,answers=3s,shell":           {answers: 3 * time.Second, shell: true},
		"stop,timeout=8s":                {timeout: 8 * time.Second},
		"restart":                        {down: 10 * time.Second},
		"freeze@1m30s":                   {at: 90 * time.Second, lasts: 20 * time.Second},
		"freeze,for=1s":                  {lasts: time.Second},
		"slow,rank=1,factor=2.5,for=1s":  {rank: 1, factor: 2.5, lasts: time.Second},
		"reset,reused=true,share=.5":     {share: .5, reused: true},
		"cut":                            {share: 1, after: 3, how: "close"},
		"cut,after=0,how=end,count=2":    {share: 1, how: "end", count: 2},
		"slow-headers,path=/v1/models":   {share: 1, delay: 30 * time.Second, path: "/v1/models"},
		"busy,retry-after=5s":            {share: 1, retryAfter: 5 * time.Second},
		"metrics,mode=nan":               {share: 1, path: "/metrics", mode: "nan"},
	} {
		got, err := parseFailure(spec)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		if name, _, _ := strings.Cut(strings.Split(spec, ",")[0], "@"); got.kind.name != name || got.spec != spec {
			t.Errorf("%s is a %s, %q", spec, got.kind.name, got.spec)
		}
		got.kind, got.spec = nil, ""
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(failure{})); diff != "" {
			t.Errorf("%s (-want +got)\n%s", spec, diff)
		}
	}
}

func TestWrongFailuresAreExplained(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"":                    `"" does not exist: choose one of die, stop, restart, freeze, slow, reset, cut, slow-headers, busy, metrics`,
		"@3s":                 `"" does not exist`,
		"explode":             `"explode" does not exist`,
		"die@soon":            `at is "soon": give a time with its unit`,
		"die@5":               `at is "5": give a time with its unit`,
		"die@-5s":             `at is "-5s"`,
		"die,rank=-1":         `rank is "-1": give a whole number from 0 on`,
		"die,rank":            `rank is ""`,
		"die,mode=nan":        `die has no key "mode": choose from at, rank, answers, shell, down, ranks`,
		"restart,ranks=0":     `ranks is "0": give a whole number from 1 on`,
		"busy,share=0":        `share is "0"`,
		"busy,share=NaN":      `share is "NaN"`,
		"cut,how=softly":      `how is "softly": choose one of close, reset, end`,
		"cut,count=many":      `count is "many"`,
		"reset,path=v1":       `path is "v1"`,
		"reset,reused=maybe":  `reused is "maybe": give true or false`,
		"metrics,mode=pretty": `mode is "pretty": choose one of 500, hang,`,
		"slow,factor=.5":      `factor is ".5": give a number from 1 to 1000`,
		"slow,factor=NaN":     `factor is "NaN"`,
		"freeze,":             `freeze has no key ""`,
	} {
		_, err := parseFailure(spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", spec, err, want)
		}
	}
}

func TestAllThatIsWrongWithFailuresIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	o.Failures = []string{"die,rank=2", "cut", "freeze,for=1,until=2"}
	_, err := New(o)
	for _, want := range []string{`"die,rank=2": there is no rank 2: choose one of 0 to 1`, `for is "1"`, `no key "until"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
}

func TestHelpNamesEveryKindAndKey(t *testing.T) {
	t.Parallel()
	help := FailureHelp()
	for _, k := range kinds() {
		if !strings.Contains(help, "\n"+k.name+" (") || (k.steps == nil) == (k.answer == nil) {
			t.Errorf("kind %s has no help, or not one of steps and answer", k.name)
		}
		for key := range strings.FieldsSeq(k.keys) {
			f := k.defaults
			if err := f.set(key, "?"); err == nil {
				t.Errorf("%s: a key %s does not look at its value", k.name, key)
			}
			if !strings.Contains(help, key) {
				t.Errorf("%s: no help for %s", k.name, key)
			}
		}
	}
}

func FuzzFailures(f *testing.F) {
	for _, k := range kinds() {
		f.Add(k.name + "@1s,for=2s,rank=1")
		f.Add(k.name + ",count=2,share=0.5,how=end,mode=nan")
	}
	f.Fuzz(func(t *testing.T, spec string) {
		got, err := parseFailure(spec)
		if err != nil {
			return
		}
		if again, err := parseFailure(got.spec); err != nil || again.spec != spec || again.kind.name != got.kind.name {
			t.Errorf("%q: %v, then %v, %v", spec, got, again, err)
		}
		if got.at < 0 || got.lasts < 0 || got.rank < 0 || got.count < 0 || got.share < 0 || got.share > 1 {
			t.Errorf("%q gives %+v", spec, got)
		}
	})
}
