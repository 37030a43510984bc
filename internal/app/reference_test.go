package app_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"lmwarden/internal/app"
	"lmwarden/internal/config"
	"lmwarden/internal/typedoc"
)

// The reference of the configuration is made from its types, their comments and
// their defaults: a table in docs/config.md, and a schema for editors.
//
//	UPDATE_DOCS=1 go test -run Reference ./internal/app

const (
	configPage    = "../../docs/config.md"
	configSchema  = "../../docs/config.schema.json"
	tableBegins   = "<!-- made from the types by internal/app/reference_test.go -->\n"
	tableEnds     = "<!-- end -->\n"
	configSources = "../config/*.go"
)

func TestReferenceOfTheConfigurationIsCurrent(t *testing.T) {
	keys := configKeys(t)
	typedoc.CurrentPart(t, configPage, tableBegins, tableEnds, table(keys))

	schema, err := json.MarshalIndent(configKey{Kind: reflect.TypeFor[config.Config](), Under: keys}.schema(true), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	typedoc.Current(t, configSchema, append(schema, '\n'))
}

// configKey is one key of the file.
type configKey struct {
	Name, Path string
	Kind       reflect.Type
	Default    string
	Says       string
	Required   bool
	Under      []configKey
}

// configKeys walks the types of the configuration.
func configKeys(t *testing.T) []configKey {
	says := typedoc.Comments(t, configSources)
	defaults := config.Default()
	defaults.Models = []config.Model{{Engines: []config.Engine{{}}}}
	defaults.Data = "lmwarden in the user's state folder"
	defaults.Fill()
	var walk func(v reflect.Value, prefix string) []configKey
	walk = func(v reflect.Value, prefix string) (keys []configKey) {
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			if !field.IsExported() || name == "" {
				continue
			}
			k := configKey{Name: name, Path: prefix + name, Kind: field.Type, Says: sentence(says[v.Type().Name()+"."+field.Name])}
			value := v.Field(i)
			if many := value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct && !isText(value.Type().Elem()); many {
				item := reflect.Zero(value.Type().Elem())
				if value.Len() > 0 {
					item = value.Index(0)
				}
				k.Under = walk(item, k.Path+"[].")
			} else if value.Kind() == reflect.Struct && !isText(value.Type()) {
				k.Under = walk(value, k.Path+".")
			} else {
				k.Default = defaultText(value)
			}
			k.Required = k.Path == "models" || k.Path == "models[].engines" || k.Path == "models[].engines[].url"
			keys = append(keys, k)
		}
		return keys
	}
	return walk(reflect.ValueOf(*defaults), "")
}

func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func isText(kind reflect.Type) bool {
	_, ok := reflect.New(kind).Interface().(interface{ UnmarshalText([]byte) error })
	return ok
}

func defaultText(v reflect.Value) string {
	if isText(v.Type()) && v.CanInterface() {
		if s, ok := v.Interface().(fmt.Stringer); ok && (!v.IsZero() || v.Type() == reflect.TypeFor[config.SpillThreshold]() || v.Type() == reflect.TypeFor[config.Patience]()) {
			return s.String()
		}
		return ""
	}
	switch v.Kind() {
	case reflect.Bool, reflect.String:
		return fmt.Sprint(v.Interface())
	case reflect.Int, reflect.Float64:
		if !v.IsZero() {
			return fmt.Sprint(v.Interface())
		}
	}
	return ""
}

// table lists every key that holds a value.
func table(keys []configKey) string {
	var b strings.Builder
	b.WriteString("\n| key | default | |\n| --- | --- | --- |\n")
	var rows func([]configKey)
	rows = func(keys []configKey) {
		for _, k := range keys {
			if k.Under != nil {
				rows(k.Under)
				continue
			}
			value := k.Default
			if value != "" && !strings.Contains(value, " ") {
				value = "`" + value + "`"
			}
			if k.Required {
				value = "required"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Path, value, strings.ReplaceAll(k.Says, "|", "\\|"))
		}
	}
	rows(keys)
	b.WriteString("\n")
	return b.String()
}

// schema is the key's JSON Schema.
func (k configKey) schema(root bool) map[string]any {
	s := map[string]any{}
	if root {
		s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		s["title"] = "LM Warden's configuration"
	}
	if k.Says != "" {
		s["description"] = k.Says
	}
	switch {
	case k.Under != nil:
		properties, required := map[string]any{}, []string{}
		for _, u := range k.Under {
			properties[u.Name] = u.schema(false)
			if u.Required {
				required = append(required, u.Name)
			}
		}
		object := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
		if len(required) > 0 {
			object["required"] = required
		}
		if k.Kind.Kind() != reflect.Slice {
			for name, v := range object {
				s[name] = v
			}
			return s
		}
		s["type"], s["items"] = "array", object
		if k.Required {
			s["minItems"] = 1
		}
	case k.Kind == reflect.TypeFor[config.Duration]():
		s["type"], s["pattern"] = "string", `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`
	case k.Kind == reflect.TypeFor[config.ByteSize]():
		s["type"], s["pattern"] = "string", `^[0-9]+ ?(B|KiB|MiB|GiB)$`
	case k.Kind == reflect.TypeFor[config.SpillThreshold]():
		s["oneOf"] = []any{map[string]any{"const": "auto"}, map[string]any{"type": "integer", "minimum": 1}}
	case k.Kind == reflect.TypeFor[config.Patience]():
		s["type"] = "string"
	case k.Kind.Kind() == reflect.Slice:
		s["type"], s["items"] = "array", map[string]any{"type": "string"}
	case k.Kind.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case k.Kind.Kind() == reflect.Int:
		s["type"] = "integer"
	case k.Kind.Kind() == reflect.Float64:
		s["type"], s["minimum"], s["maximum"] = "number", 0, 1
	default:
		s["type"] = "string"
	}
	if allowed := words[k.Path]; allowed != nil {
		s["enum"] = allowed
	}
	if k.Default != "" && k.Path != "data" {
		s["default"] = json.RawMessage(k.Default)
		if !json.Valid([]byte(k.Default)) {
			s["default"] = k.Default
		}
	}
	return s
}

// words are the keys that take a word of a list.
var words = map[string][]string{
	"models[].policy":    app.Policies(),
	"models[].shadow":    app.Policies(),
	"models[].host_tier": {"auto", "on", "off"},
	"limits.keep_alive":  {"auto", "ping", "comment", "none"},
	"log.level":          {"debug", "info", "warn", "error"},
	"log.format":         {"text", "json"},
}
