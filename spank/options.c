/* The four options, and their values. */
#include "bivouac.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

struct wish wish;

enum { BARE, STAGE_IN, STAGE_OUT, OPTS, OPTIONS };

static const char *const flag_of[OPTIONS] = {[STAGE_IN] = "--stage-in", [STAGE_OUT] = "--stage-out", [OPTS] = "--opts"};

/* Slurm passes a missing argument as the string "(null)". On the nodes it knows only the last of a repeated option: there only its presence counts. */
static int heard(int val, const char *arg, int remote)
{
	struct option *grown = realloc(wish.options, (wish.count + 1) * sizeof *grown);

	(void)remote;
	if (grown == NULL || val < 0 || val >= OPTIONS) {
		slurm_error("bivouac: submission: couldn't remember the option %d: %s", val, strerror(ENOMEM));
		return -1;
	}
	wish.options = grown;
	grown[wish.count].val = val;
	grown[wish.count].arg = strdup(arg == NULL || strcmp(arg, "(null)") == 0 ? "" : arg);
	if (grown[wish.count].arg == NULL)
		return -1;
	wish.count++;
	return 0;
}

static struct spank_option options[] = {
	{"bivouac", NULL, "give the job a filesystem of its own on its nodes' local disks ($BIVOUAC)", 0, BARE, heard},
	{"bivouac-stage-in", "SRC[:NAME][,KEY=VALUE]...", "unpack a tar or zip, or copy a directory, to $BIVOUAC_DATA/NAME; the job starts when the tree is readable (repeatable)", 1, STAGE_IN,
	 heard},
	{"bivouac-stage-out", "FROM:TO", "copy $BIVOUAC_SCRATCH/FROM to the directory TO while the job runs and when it ends (repeatable)", 1, STAGE_OUT, heard},
	{"bivouac-opts", "KEY=VALUE,...", "settings of the job's filesystem, such as wait=all,capacity=400G,rate=200M; bivouac --help lists the keys", 1, OPTS, heard},
};

int options_register(spank_t sp)
{
	for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
		spank_err_t err = spank_option_register(sp, &options[i]);

		if (err != ESPANK_SUCCESS) {
			slurm_error("bivouac: couldn't register --%s: %s", options[i].name, spank_strerror(err));
			return -1;
		}
	}
	return 0;
}

/* The names under which Slurm keeps plugin options in the environment. */
static const char *const prefixes[] = {
	"_SLURM_SPANK_OPTION_bivouac_",
	"SLURM_SPANK__SLURM_SPANK_OPTION_bivouac_",
	"SPANK__SLURM_SPANK_OPTION_bivouac_",
};

/* Forgets the last value of an option. */
static void unhear(int val)
{
	for (size_t i = wish.count; i-- > 0;) {
		if (wish.options[i].val != val)
			continue;
		free(wish.options[i].arg);
		memmove(&wish.options[i], &wish.options[i + 1], (wish.count - i - 1) * sizeof wish.options[0]);
		wish.count--;
		return;
	}
}

static bool in_environment(const char *option)
{
	char name[128];
	size_t n = (size_t)snprintf(name, sizeof name, "%s%s", prefixes[0], option);

	for (size_t i = 0; i < n && n < sizeof name; i++)
		if (name[i] == '-')
			name[i] = '_';
	return getenv(name) != NULL;
}

/*
 * For each component of a heterogeneous job sbatch calls back for the options given for it and then once more for each option that an earlier
 * component left in the environment: a bivouac belongs to one component.
 */
void options_end_of_component(void)
{
	static bool carried[OPTIONS];

	for (size_t i = 0; i < OPTIONS; i++) {
		if (carried[i])
			unhear(options[i].val);
		carried[i] = in_environment(options[i].name);
	}
}

void options_forget(void)
{
	while (wish.count > 0)
		unhear(wish.options[wish.count - 1].val);
}

/* Removes a variable if its name begins with the prefix; true if environ has moved. */
static bool drop(const char *entry, const char *prefix)
{
	char name[256];
	size_t length = strcspn(entry, "=");

	if (strncmp(entry, prefix, strlen(prefix)) != 0 || length >= sizeof name)
		return false;
	memcpy(name, entry, length);
	name[length] = '\0';
	return unsetenv(name) == 0;
}

void options_disinherit(void)
{
	for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++)
		for (size_t i = 0; environ != NULL && environ[i] != NULL;)
			if (!drop(environ[i], prefixes[p]))
				i++;
}

char **options_arguments(char *const *first)
{
	size_t n = 0;
	char **argv;

	while (first[n] != NULL)
		n++;
	argv = calloc(n + 2 * wish.count + 1, sizeof *argv);
	if (argv == NULL)
		return NULL;
	memcpy(argv, first, n * sizeof *argv);
	for (size_t i = 0; i < wish.count; i++) {
		if (flag_of[wish.options[i].val] == NULL)
			continue;
		argv[n++] = (char *)flag_of[wish.options[i].val];
		argv[n++] = wish.options[i].arg;
	}
	return argv;
}
