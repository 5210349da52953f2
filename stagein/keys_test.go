package stagein

import "testing"

// TestKeys: each option is documented exactly once.
func TestKeys(t *testing.T) {
	seen := make(map[string]bool)
	for _, k := range Keys {
		if _, ok := optionKeys[k.Name]; !ok || seen[k.Name] {
			t.Errorf("%s is documented, and is no option or was documented before", k.Name)
		}
		if seen[k.Name] = true; k.Values == "" || k.Default == "" || k.Meaning == "" || len([]rune(k.Meaning)) > 160 {
			t.Errorf("%s: want values, a default and a meaning of at most 160 characters: %+v", k.Name, k)
		}
	}
	for name := range optionKeys {
		if !seen[name] {
			t.Errorf("Keys lacks the option %s", name)
		}
	}
}
