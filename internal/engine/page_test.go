package engine

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func recordedPages(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/metrics-*.prom")
	if err != nil || len(names) == 0 {
		t.Fatalf("no recorded pages (%v)", err)
	}
	pages := map[string][]byte{}
	for _, name := range names {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(name)] = page
	}
	return pages
}

// reference reads a page with the Prometheus parser and answers what ParsePage
// should: the sum over model names per engine.
func reference(t testing.TB, page []byte) Page {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		t.Fatalf("reference parser: %v", err)
	}
	label := func(m *dto.Metric, name string) string {
		for _, l := range m.GetLabel() {
			if l.GetName() == name {
				return l.GetValue()
			}
		}
		return ""
	}
	value := func(m *dto.Metric) float64 {
		switch {
		case m.Gauge != nil:
			return m.Gauge.GetValue()
		case m.Counter != nil:
			return m.Counter.GetValue()
		}
		return m.Untyped.GetValue()
	}
	var engines []string
	for _, m := range families["vllm:num_requests_running"].GetMetric() {
		engines = append(engines, label(m, "engine"))
	}
	slices.Sort(engines)
	engines = slices.Compact(engines)
	of := func(engine, name string, absent float64) float64 {
		sum, found := 0.0, false
		for _, m := range families[name].GetMetric() {
			if label(m, "engine") == engine {
				sum += value(m)
				found = true
			}
		}
		if !found {
			return absent
		}
		return sum
	}
	out := Page{Kind: "vllm", PrefixCaching: true}
	if f := families["process_start_time_seconds"]; f != nil {
		out.StartTime = value(f.GetMetric()[0])
	}
	for _, e := range engines {
		s := Sample{
			Running:          of(e, "vllm:num_requests_running", math.NaN()),
			Waiting:          of(e, "vllm:num_requests_waiting", math.NaN()),
			KVUsed:           of(e, "vllm:kv_cache_usage_perc", math.NaN()),
			PromptTokens:     of(e, "vllm:prompt_tokens_total", -1),
			CachedTokens:     of(e, "vllm:prompt_tokens_cached_total", -1),
			PrefixQueries:    of(e, "vllm:prefix_cache_queries_total", -1),
			PrefixHits:       of(e, "vllm:prefix_cache_hits_total", -1),
			GenerationTokens: of(e, "vllm:generation_tokens_total", -1),
			Preemptions:      of(e, "vllm:num_preemptions_total", -1),
		}
		for _, m := range families["vllm:cache_config_info"].GetMetric() {
			if label(m, "engine") == e {
				s.CapacityTokens = positive([]byte(label(m, "kv_cache_size_tokens")))
				out.BlockSize = int(positive([]byte(label(m, "block_size"))))
			}
		}
		out.Samples = append(out.Samples, s)
	}
	return out
}

func TestRecordedPagesReadAsPrometheusReadsThem(t *testing.T) {
	for name, page := range recordedPages(t) {
		got, err := ParsePage(page)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(reference(t, page), got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s (-prometheus +ours):\n%s", name, diff)
		}
	}
}

func TestRecordedPageUnderLoad(t *testing.T) {
	page, err := ParsePage(recordedPages(t)["metrics-load.prom"])
	if err != nil {
		t.Fatal(err)
	}
	want := Page{
		Kind: "vllm", BlockSize: 32, PrefixCaching: true, StartTime: 1.79597308591e+09,
		Samples: []Sample{
			{Running: 35, Waiting: 109, KVUsed: 0.022431104464857965, PromptTokens: 171679, CachedTokens: 58624,
				PrefixQueries: 172343, PrefixHits: 58624, GenerationTokens: 25591, CapacityTokens: 1048576},
			{Running: 20, KVUsed: 0.012451551866206834, PromptTokens: 85742, CachedTokens: 34848,
				PrefixQueries: 86406, PrefixHits: 34848, GenerationTokens: 3312, CapacityTokens: 1048576},
		},
	}
	if diff := cmp.Diff(want, page); diff != "" {
		t.Error(diff)
	}
}

// absent is a sample of a page that tells nothing.
func absent(set func(*Sample)) Sample {
	nan := math.NaN()
	s := Sample{Running: nan, Waiting: nan, KVUsed: nan, PromptTokens: -1, CachedTokens: -1,
		PrefixQueries: -1, PrefixHits: -1, GenerationTokens: -1, Preemptions: -1}
	if set != nil {
		set(&s)
	}
	return s
}

func TestParsePage(t *testing.T) {
	tests := []struct {
		name    string
		page    string
		models  []string
		samples []Sample
	}{
		{"labels in any order, blanks, trailing comma, time stamp", strings.Join([]string{
			"  vllm:num_requests_running { model_name = \"m\" ,\tengine=\"1\" , } \t 3 1795973199000",
			`vllm:num_requests_running{engine="0",model_name="m"} 2`,
		}, "\n"), nil, []Sample{absent(func(s *Sample) { s.Running = 2 }), absent(func(s *Sample) { s.Running = 3 })}},
		{"escapes in a label", `vllm:num_requests_running{model_name="a\"}\\\n,",engine="0"} 1`, []string{"a\"}\\\n,"},
			[]Sample{absent(func(s *Sample) { s.Running = 1 })}},
		{"exponents", `vllm:prompt_tokens_total{engine="0"} 1.234567e+06`, nil,
			[]Sample{absent(func(s *Sample) { s.PromptTokens = 1234567 })}},
		{"values that cannot be", strings.Join([]string{
			`vllm:num_requests_running{engine="0"} NaN`,
			`vllm:num_requests_waiting{engine="0"} +Inf`,
			`vllm:kv_cache_usage_perc{engine="0"} -0.5`,
			`vllm:prompt_tokens_total{engine="0"} NaN`,
			`vllm:generation_tokens_total{engine="0"} 7`,
		}, "\n"), nil, []Sample{absent(func(s *Sample) { s.GenerationTokens = 7 })}},
		{"old names", strings.Join([]string{
			`vllm:gpu_cache_usage_perc{model_name="m"} 0.5`,
			`vllm:gpu_prefix_cache_queries_total{model_name="m"} 10`,
			`vllm:gpu_prefix_cache_hits_total{model_name="m"} 4`,
		}, "\n"), nil, []Sample{absent(func(s *Sample) { s.KVUsed, s.PrefixQueries, s.PrefixHits = 0.5, 10, 4 })}},
		{"old and new names together count once", strings.Join([]string{
			`vllm:gpu_prefix_cache_queries_total{engine="0"} 10`,
			`vllm:prefix_cache_queries_total{engine="0"} 10`,
		}, "\n"), nil, []Sample{absent(func(s *Sample) { s.PrefixQueries = 10 })}},
		{"a histogram that ends in _total, and one of a known prefix", strings.Join([]string{
			`# TYPE vllm:iteration_tokens_total histogram`,
			`vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 5`,
			`vllm:prompt_tokens_total_bucket{engine="0",le="1.0"} 5`,
			`vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 5`,
			`vllm:num_requests_waiting{engine="0"} 1`,
		}, "\n"), nil, []Sample{absent(func(s *Sample) { s.Waiting = 1 })}},
		{"several models on one engine add up", strings.Join([]string{
			`vllm:num_requests_running{engine="0",model_name="a"} 1`,
			`vllm:num_requests_running{engine="0",model_name="b"} 2`,
			`vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25`,
			`vllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.5`,
		}, "\n"), nil, []Sample{absent(func(s *Sample) { s.Running, s.KVUsed = 3, 0.5 })}},
		{"only the asked model counts", strings.Join([]string{
			`vllm:num_requests_running{engine="0",model_name="a"} 1`,
			`vllm:num_requests_running{engine="0",model_name="b"} 2`,
			`vllm:num_requests_running{engine="1",model_name="b"} 2`,
		}, "\n"), []string{"a", "x"}, []Sample{absent(func(s *Sample) { s.Running = 1 })}},
		{"a model that the page does not know changes nothing", `vllm:num_requests_running{engine="0",model_name="a"} 1`,
			[]string{"x"}, []Sample{absent(func(s *Sample) { s.Running = 1 })}},
		{"engine labels with gaps, in numeric order", strings.Join([]string{
			`vllm:num_requests_running{engine="10"} 10`,
			`vllm:num_requests_running{engine="4"} 4`,
			`vllm:num_requests_running{engine="7"} 7`,
		}, "\n"), nil, []Sample{
			absent(func(s *Sample) { s.Running = 4 }),
			absent(func(s *Sample) { s.Running = 7 }),
			absent(func(s *Sample) { s.Running = 10 }),
		}},
		{"a series without the label among labelled ones", strings.Join([]string{
			`vllm:num_requests_running 9`,
			`vllm:num_requests_running{engine="0"} 1`,
		}, "\n"), nil, []Sample{absent(func(s *Sample) { s.Running = 1 })}},
		{"no labels at all, carriage returns, no last line end", "vllm:num_requests_running 9\r\nvllm:num_requests_waiting 1\r",
			nil, []Sample{absent(func(s *Sample) { s.Running, s.Waiting = 9, 1 })}},
		{"capacity from the sum of blocks", strings.Join([]string{
			`vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="4768"} 1`,
			`vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="4768"} 1`,
		}, "\n"), nil, []Sample{
			absent(func(s *Sample) { s.CapacityTokens = 2384 * 16 }),
			absent(func(s *Sample) { s.CapacityTokens = 2384 * 16 }),
		}},
		{"capacity of the engine's own telling", strings.Join([]string{
			`vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="4768",kv_cache_size_tokens="100"} 1`,
			`vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="4768",kv_cache_size_tokens="200"} 1`,
		}, "\n"), nil, []Sample{
			absent(func(s *Sample) { s.CapacityTokens = 100 }),
			absent(func(s *Sample) { s.CapacityTokens = 200 }),
		}},
	}
	for _, test := range tests {
		page, err := ParsePage([]byte(test.page), test.models...)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if diff := cmp.Diff(test.samples, page.Samples, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestParsePageCacheConfig(t *testing.T) {
	tests := []struct {
		labels                  string
		prefixCaching, hostTier bool
	}{
		{`enable_prefix_caching="True",kv_offloading_backend="native",kv_offloading_size="None"`, true, false},
		{`enable_prefix_caching="False",kv_offloading_size="8.0"`, false, true},
		{`block_size="16"`, true, false},
	}
	for _, test := range tests {
		page, err := ParsePage([]byte(`vllm:cache_config_info{engine="0",` + test.labels + `} 1.0`))
		if err != nil {
			t.Fatal(err)
		}
		if page.PrefixCaching != test.prefixCaching || page.HostTier != test.hostTier {
			t.Errorf("%s: prefix caching %v, host tier %v", test.labels, page.PrefixCaching, page.HostTier)
		}
	}
}

func TestParsePageErrors(t *testing.T) {
	good := "vllm:num_requests_waiting{engine=\"0\"} 1\n"
	tests := []struct{ name, page, want string }{
		{"empty", "", "no engine metrics"},
		{"html", "<!doctype html><title>hello</title>", "no engine metrics"},
		{"another program", "go_goroutines 5\n", "no engine metrics"},
		{"no value", good + `vllm:num_requests_running{engine="0"}`, "line 2: vllm:num_requests_running has a broken value"},
		{"word", good + `vllm:num_requests_running{engine="0"} many`, "line 2: vllm:num_requests_running has a broken value"},
		{"hexadecimal", `vllm:num_requests_running 0x1p4`, "broken value"},
		{"underscore", `vllm:num_requests_running 1_000`, "broken value"},
		{"time stamp", `vllm:num_requests_running 1 soon`, "broken value"},
		{"open brace", `vllm:num_requests_running{engine="0" 1`, "broken labels"},
		{"open quote", `vllm:num_requests_running{engine="0} 1`, "broken labels"},
		{"escape", `vllm:num_requests_running{engine="\x"} 1`, "broken labels"},
		{"escape at the end", `vllm:num_requests_running{engine="\`, "broken labels"},
		{"label that begins with a digit", `vllm:num_requests_running{0engine="0"} 1`, "broken labels"},
		{"bare value", `vllm:num_requests_running{engine=0} 1`, "broken labels"},
	}
	for _, test := range tests {
		_, err := ParsePage([]byte(test.page))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want ...%s...", test.name, err, test.want)
		}
	}
	var many strings.Builder
	for i := range 2 * maxRanks {
		many.WriteString("vllm:num_requests_running{engine=\"" + strings.Repeat("9", i) + "\"} 1\n")
		if i > maxRanks {
			break
		}
	}
	if _, err := ParsePage([]byte(many.String())); err == nil {
		t.Error("no error for a page with too many engines")
	}
}

func FuzzParsePage(f *testing.F) {
	for _, page := range recordedPages(f) {
		var known []byte
		for line := range bytes.Lines(page) {
			if name, _, _ := bytes.Cut(line, []byte("{")); vllmMetric(name) != unknown {
				known = append(known, line...)
			}
		}
		f.Add(known)
	}
	f.Add([]byte(fixture(f, "llamacpp/metrics-load.prom")))
	f.Add([]byte(fixture(f, "sglang/two-ranks.prom")))
	f.Add([]byte("vllm:num_requests_running{engine=\"a\\\"b\"} 1e3 5\nvllm:prompt_tokens_total NaN\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		got, err := ParsePage(page, "tiny")
		if err != nil {
			return
		}
		if len(got.Samples) == 0 {
			t.Fatal("a good page without a rank")
		}
		for _, s := range got.Samples {
			for _, gauge := range []float64{s.Running, s.Waiting, s.KVUsed} {
				if gauge < 0 || math.IsInf(gauge, 0) {
					t.Fatalf("gauge %v", gauge)
				}
			}
			if s.KVUsed > 1 || s.CapacityTokens < 0 {
				t.Fatalf("sample %+v", s)
			}
			for _, counter := range []float64{s.PromptTokens, s.CachedTokens, s.PrefixQueries, s.PrefixHits, s.GenerationTokens, s.Preemptions} {
				if counter < 0 && counter != -1 || math.IsNaN(counter) {
					t.Fatalf("counter %v", counter)
				}
			}
		}
	})
}

// Lines in the reference parser's own output must read the same here, whatever
// stands in the labels.
func FuzzParsePageAgainstPrometheus(f *testing.F) {
	f.Add("0", "tiny", 1.5, "1", "b\"\\\n", 2e300)
	f.Add("", "", 0.0, "x", "é}{,", -3.0)
	f.Fuzz(func(t *testing.T, engine1, model1 string, v1 float64, engine2, model2 string, v2 float64) {
		series := func(engine, modelName string, v float64) *dto.Metric {
			pair := func(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }
			return &dto.Metric{Gauge: &dto.Gauge{Value: &v}, Label: []*dto.LabelPair{pair("engine", engine), pair("model_name", modelName)}}
		}
		name, kind := "vllm:num_requests_running", dto.MetricType_GAUGE
		family := &dto.MetricFamily{Name: &name, Type: &kind, Metric: []*dto.Metric{
			series(engine1, model1, v1), series(engine2, model2, v2)}}
		var page bytes.Buffer
		if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
			t.Skip("not a page that Prometheus writes")
		}
		got, err := ParsePage(page.Bytes())
		if err != nil {
			t.Fatalf("%v\n%s", err, page.Bytes())
		}
		// Ours counts a value that cannot be as absent.
		possible := func(v float64) float64 {
			if v < 0 || math.IsInf(v, 0) {
				return math.NaN()
			}
			return v
		}
		v1, v2 = possible(v1), possible(v2)
		var want []float64
		switch {
		case engine1 == engine2 && !math.IsNaN(v1) && !math.IsNaN(v2):
			want = []float64{min(v1+v2, math.MaxFloat64)}
		case engine1 == engine2:
			want = []float64{first(v1, v2, math.NaN())}
		case engine1 == "":
			want = []float64{v2}
		case engine2 == "":
			want = []float64{v1}
		case len(engine1) < len(engine2), len(engine1) == len(engine2) && engine1 < engine2:
			want = []float64{v1, v2}
		default:
			want = []float64{v2, v1}
		}
		var running []float64
		for _, s := range got.Samples {
			running = append(running, s.Running)
		}
		if diff := cmp.Diff(want, running, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s\n%s", diff, page.Bytes())
		}
	})
}

func BenchmarkParsePage(b *testing.B) {
	page := recordedPages(b)["metrics-load.prom"]
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParsePage(page); err != nil {
			b.Fatal(err)
		}
	}
}
