package results

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Difference is a setting that two measurements do not share.
type Difference struct {
	Name string // as in protocol.step_s
	A, B any    // nil where the setting is not known
	// Unlike says that figures do not compare because of it. Another box, or other
	// arms and steps beside those that are compared, is no hindrance.
	Unlike bool
}

// String names the setting and its values.
func (d Difference) String() string {
	return fmt.Sprintf("%s is %s and %s", d.Name, d.TextA(), d.TextB())
}

// TextA and TextB print the values.
func (d Difference) TextA() string { return SettingText(d.A) }
func (d Difference) TextB() string { return SettingText(d.B) }

// UnlikeError says that two measurements do not compare.
type UnlikeError struct{ Differences []Difference }

func (e UnlikeError) Error() string {
	var list []string
	for _, d := range e.Differences {
		list = append(list, d.String())
	}
	return fmt.Sprintf("the measurements do not compare (%s): repeat one with the other's settings", strings.Join(list, ", "))
}

// Differences lists the settings in which two measurements differ: workload,
// protocol, box, each by name.
func Differences(a, b *Results) []Difference {
	var all []Difference
	for _, part := range []struct {
		name   string
		a, b   Settings
		unlike bool
	}{{"workload", a.Workload, b.Workload, true}, {"protocol", a.Protocol, b.Protocol, true}, {"box", a.Box, b.Box, false}} {
		for _, d := range differing(part.name, part.a, part.b) {
			d.Unlike = part.unlike && d.Name != "protocol.arms" && d.Name != "protocol.sessions"
			all = append(all, d)
		}
	}
	return all
}

func differing(at string, a, b map[string]any) []Difference {
	var all []Difference
	names := maps.Clone(a)
	if names == nil {
		names = map[string]any{}
	}
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		inA, isA := a[name].(map[string]any)
		inB, isB := b[name].(map[string]any)
		switch path := at + "." + name; {
		case isA && isB:
			all = append(all, differing(path, inA, inB)...)
		case !reflect.DeepEqual(a[name], b[name]):
			all = append(all, Difference{Name: path, A: a[name], B: b[name]})
		}
	}
	return all
}

// SettingText prints a setting; what is not there is a dash.
func SettingText(v any) string {
	if v == nil {
		return notMeasured
	}
	if text, ok := v.(string); ok {
		return text
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}
