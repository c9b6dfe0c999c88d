/* The all-reduce loop that MPI programs are measured with: in C, a call after the other, no checks.
   Prints microseconds a call on the slowest rank, one line for each repeat. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const int count = atoi(argv[1]), calls = atoi(argv[2]), repeats = atoi(argv[3]);
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *values = calloc(count, sizeof(float));
    for (int repeat = 0; repeat < repeats; repeat++) {
        for (int i = 0; i < calls / 10 + 1; i++)
            MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        double seconds = MPI_Wtime(), slowest;
        for (int i = 0; i < calls; i++)
            MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        seconds = MPI_Wtime() - seconds;
        MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0)
            printf("%.6f\n", slowest / calls * 1e6);
    }
    free(values);
    return MPI_Finalize();
}
