package server

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// absent are the recorded families that the simulation leaves out on purpose.
func absent(family string) bool {
	for _, prefix := range []string{
		"python_",                           // the Python runtime
		"http_",                             // the web framework
		"vllm:request_num_preemptions",      // the model counts preemptions, but not whose
		"vllm:tool_call_parser_invocations", // there is no parser
		"process_virtual_memory_bytes",      // there is no such process
		"process_resident_memory_bytes",
		"process_cpu_seconds_total",
		"process_open_fds",
		"process_max_fds",
	} {
		if strings.HasPrefix(family, prefix) {
			return true
		}
	}
	return false
}

var (
	typeLine   = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	helpLine   = regexp.MustCompile(`^# HELP (\S+) (.*)$`)
	sampleLine = regexp.MustCompile(`^([a-z0-9_:]+)(?:\{(.*)\})? \S+$`)
	labelName  = regexp.MustCompile(`([a-z_]+)="`)
	values     = regexp.MustCompile(`(le|reason|source|sleep_state|finished_reason|engine|model_name)="([^"]*)"`)
)

// layout is what a metrics page declares, less the families left out: per family its type, help and the
// order of labels and of those label values that are the same on every server.
func layout(t *testing.T, page string) map[string][]string {
	t.Helper()
	families := map[string][]string{}
	family := ""
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		if m := helpLine.FindStringSubmatch(line); m != nil {
			family = m[1]
			families[family] = append(families[family], m[2])
		} else if m := typeLine.FindStringSubmatch(line); m != nil {
			families[family] = append(families[family], m[2])
		} else if m := sampleLine.FindStringSubmatch(line); m != nil {
			labels := m[1] + " "
			for _, name := range labelName.FindAllStringSubmatch(m[2], -1) {
				labels += name[1] + " "
			}
			for _, value := range values.FindAllStringSubmatch(m[2], -1) {
				labels += value[2] + " "
			}
			families[family] = append(families[family], labels)
		} else {
			t.Errorf("not a line of a metrics page: %q", line)
		}
	}
	maps.DeleteFunc(families, func(family string, _ []string) bool { return absent(family) })
	return families
}

func TestMetricsPageIsLaidOutAsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, recorded(t))
		r, page := n.roundTrip(t, []byte("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))
		if got := r.Header.Get("Content-Type"); got != "text/plain; version=1.0.0; charset=utf-8" {
			t.Errorf("content type %q", got)
		}
		if diff := cmp.Diff(layout(t, recordedText(t, "metrics-after.prom")), layout(t, string(page))); diff != "" {
			t.Errorf("(-recorded +simulated)\n%s", diff)
		}
	})
}

func TestMetricsCountWhatHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := recorded(t)
		o.AnswerTokens = 10
		n := serve(t, o)
		k := newTalk(n, "counted")
		first, second := k.turn(t, 300, onRank(1)), k.turn(t, 450, onRank(1))
		n.send(t, post("/v1/chat/completions", `{"messages": [{"role": "user", "content": "[[tokens 3]]"}]}`, onRank(1)))
		short := len("<user\n[[tokens 3]]>\n<assistant\n")
		_, raw := n.roundTrip(t, []byte("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		value := func(family string, labels ...string) float64 {
			t.Helper()
			if families[family] == nil {
				t.Fatalf("no family %s", family)
			}
			for _, m := range families[family].Metric {
				have := []string{}
				for _, l := range m.Label {
					if l.GetName() != "model_name" {
						have = append(have, l.GetName()+"="+l.GetValue())
					}
				}
				if slices.Equal(have, labels) {
					switch {
					case m.Histogram != nil:
						return float64(m.Histogram.GetSampleCount())
					case m.Counter != nil:
						return m.Counter.GetValue()
					}
					return m.Gauge.GetValue()
				}
			}
			t.Fatalf("family %s has no series with %v", family, labels)
			return 0
		}
		prompt, cached := first.Prompt+second.Prompt+short, first.Cached+second.Cached
		for _, c := range []struct {
			family string
			labels []string
			want   int
		}{
			{"vllm:prompt_tokens_total", []string{"engine=1"}, prompt},
			{"vllm:prompt_tokens_total", []string{"engine=0"}, 0},
			{"vllm:prompt_tokens_cached_total", []string{"engine=1"}, cached},
			{"vllm:prompt_tokens_by_source_total", []string{"engine=1", "source=local_compute"}, prompt - cached},
			{"vllm:prompt_tokens_by_source_total", []string{"engine=1", "source=local_cache_hit"}, cached},
			{"vllm:prefix_cache_queries_total", []string{"engine=1"}, prompt},
			{"vllm:prefix_cache_hits_total", []string{"engine=1"}, cached},
			{"vllm:generation_tokens_total", []string{"engine=1"}, 8 + 8 + 3},
			{"vllm:request_success_total", []string{"engine=1", "finished_reason=stop"}, 1},
			{"vllm:request_success_total", []string{"engine=1", "finished_reason=length"}, 2},
			{"vllm:time_to_first_token_seconds", []string{"engine=1"}, 3},
			{"vllm:e2e_request_latency_seconds", []string{"engine=1"}, 3},
			{"vllm:e2e_request_latency_seconds", []string{"engine=0"}, 0},
			{"vllm:inter_token_latency_seconds", []string{"engine=1"}, 7 + 7 + 2},
			{"vllm:num_requests_running", []string{"engine=1"}, 0},
		} {
			if got := value(c.family, c.labels...); got != float64(c.want) {
				t.Errorf("%s %v is %g, want %d", c.family, c.labels, got, c.want)
			}
		}
		// Two ranks of 400 blocks: the sum over both stands on each series, the tokens are one rank's.
		for _, want := range []string{`num_gpu_blocks="800"`, `kv_cache_size_tokens="12800"`, `block_size="32"`} {
			if got := strings.Count(string(raw), want); got < 2 {
				t.Errorf("%s stands %d times on the page, want it on both series", want, got)
			}
		}
	})
}

func TestSampleValue(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]float64{
		"0.0": 0, "1.0": 1, "0.25": .25, "123456.0": 123456, "999999.0": 999999, "1e+06": 1e6, "1.234567e+06": 1234567,
		"1.79597308591e+09": 1795973085.91, "-5.0": -5, "1e-05": 1e-5, "0.0001": 1e-4, "2.4e+010": 24e9,
	} {
		if got := sampleValue(v); got != want {
			t.Errorf("sampleValue(%g) = %s, want %s", v, got, want)
		}
	}
}
