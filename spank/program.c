/*
 * Running the program `bivouac`. Its output is kept in a memory file, not in a pipe: a daemon that it leaves behind with an open descriptor
 * cannot make us wait for an end of file.
 */
#define _GNU_SOURCE
#include "bivouac.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_MAX (64 * 1024)
#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

extern char **environ;

int program_memory(void)
{
	return memfd_create("bivouac", MFD_CLOEXEC);
}

char *program_text(int fd)
{
	char *text = malloc(TEXT_MAX + 1);
	size_t n = 0;

	if (text == NULL)
		return NULL;
	while (n < TEXT_MAX) {
		ssize_t got = pread(fd, text + n, TEXT_MAX - n, (off_t)n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL)
		n--;
	text[n] = '\0';
	return text;
}

/* The program prints only what a user or administrator must see; `slurmstepd spank` logs nothing below an error to slurmd's log. */
void program_log(const char *who, int fd)
{
	char *text = program_text(fd), *rest = text, *line;

	while (text != NULL && (line = strsep(&rest, "\n")) != NULL)
		if (line[0] != '\0')
			slurm_error("bivouac: %s: %s", who, strncmp(line, "bivouac: ", 9) == 0 ? line + 9 : line);
	free(text);
}

static bool replaced(const char *entry, const char *const *more)
{
	for (; *more != NULL; more++)
		if (strncmp(entry, *more, strcspn(*more, "=") + 1) == 0)
			return true;
	return false;
}

char **program_environment(const char *const *more)
{
	size_t have = 0, add = 0, n = 0;
	char **env;

	while (environ != NULL && environ[have] != NULL)
		have++;
	while (more[add] != NULL)
		add++;
	env = calloc(have + add + 1, sizeof *env);
	if (env == NULL)
		return NULL;
	for (size_t i = 0; i < have; i++)
		if (!replaced(environ[i], more))
			env[n++] = environ[i];
	for (size_t i = 0; i < add; i++)
		env[n++] = (char *)more[i];
	return env;
}

/* Slurm's processes block signals and change dispositions; the program starts with a clean slate. */
static void reset_signals(void)
{
	sigset_t none;

	for (int s = 1; s < NSIG; s++)
		signal(s, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* In the child: never returns. Status 127 says that nothing was executed. */
static void execute(const struct run *run)
{
	static char *const no_environment[] = {NULL};
	char *const *envp = run->envp != NULL ? run->envp : no_environment;
	int null = open("/dev/null", O_RDWR);

	reset_signals();
	if (null < 0 || dup2(null, STDIN_FILENO) < 0)
		_exit(127);
	if (run->out >= 0 && dup2(run->out, STDOUT_FILENO) < 0)
		_exit(127);
	if (run->err >= 0 && dup2(run->err, STDERR_FILENO) < 0)
		_exit(127);
	closefrom(STDERR_FILENO + 1);
	execve(run->argv[0], run->argv, envp);
	if (errno == ENOENT && setenv("PATH", PATH_DEFAULT, 0) == 0)
		execvpe("bivouac", run->argv, envp);
	_exit(127);
}

int program_run(const struct run *run)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return 127;
	if (pid == 0)
		execute(run);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return 127;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
