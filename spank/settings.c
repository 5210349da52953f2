/* The plugin's arguments in plugstack.conf. */
#include "bivouac.h"

#include <stdio.h>
#include <string.h>

struct settings settings = {.program = "/usr/bin/bivouac", .run = "/run/bivouac", .log = "/var/log/bivouac"};

static int set(char *to, size_t size, const char *name, const char *value)
{
	if (value[0] != '/') {
		slurm_error("bivouac: plugstack.conf: %s=%s is not an absolute path", name, value);
		return -1;
	}
	if ((size_t)snprintf(to, size, "%s", value) >= size) {
		slurm_error("bivouac: plugstack.conf: %s= is too long", name);
		return -1;
	}
	return 0;
}

int settings_parse(int ac, char **av)
{
	int rv = 0;

	for (int i = 0; i < ac; i++) {
		if (strncmp(av[i], "bivouac=", 8) == 0) {
			rv |= set(settings.program, sizeof settings.program, "bivouac", av[i] + 8);
		} else if (strncmp(av[i], "run=", 4) == 0) {
			rv |= set(settings.run, sizeof settings.run, "run", av[i] + 4);
		} else if (strncmp(av[i], "log=", 4) == 0) {
			rv |= set(settings.log, sizeof settings.log, "log", av[i] + 4);
		} else {
			slurm_error("bivouac: plugstack.conf: unknown argument %s (bivouac=PATH, run=DIR, log=DIR)", av[i]);
			rv = -1;
		}
	}
	return rv;
}
